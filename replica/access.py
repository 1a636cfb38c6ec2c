"""What a group has to show to the Lighthouse and to its peers, and what its settings leave open."""

from lighthouse.access import Access, read_access
from lighthouse.job_token import others_may_read
from replica.config import GroupConfig
from replica.errors import UserError


def access_of(config: GroupConfig) -> Access:
    """Token and certificates, read from their files. Raises UserError."""
    try:
        return read_access(config.token_file, cert=config.tls_cert, key=config.tls_key, ca=config.tls_ca)
    except ValueError as error:
        raise UserError(str(error)) from None


def what_is_open(config: GroupConfig) -> list[str]:
    """A sentence for each thing that is open to others than the job's own."""
    clear = "" if config.tls_ca is not None else ", and (no --tls-ca) read the state of a heal"
    if config.token_file is None:
        return [f"no --token-file: whoever reaches this network can join and end this job{clear}"]
    said = [] if config.tls_ca is not None else ["no --tls-ca: the state of a heal travels in the clear"]
    if others_may_read(config.token_file):
        said.append(f"every user of this host can read {config.token_file}: chmod 600 it")
    return said
