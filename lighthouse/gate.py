"""Who may call what on our own service: read-only calls are open, all others ask for the token and TLS."""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lighthouse.challenge import KEY_BYTES, SALT_BYTES, Nonces, proof_of, read_credentials
from lighthouse.coordinator import Coordinator
from lighthouse.model import Refusal
from lighthouse.refusals import SENTENCE, STATUS
from protos import lighthouse_pb2 as pb

R = TypeVar("R")
Handler = Callable[[bytes, Any], Awaitable[R]]


class Gate:
    """Stands before the calls that act. Runs on the event loop's thread.

    `token` empty: none is asked for. `tls_port` 0: TLS is not spoken.
    """

    def __init__(self, coordinator: Coordinator, *, token: bytes = b"", tls_port: int = 0) -> None:
        self._coordinator = coordinator
        self._token = token
        self._tls_port = tls_port
        self._nonces = Nonces(os.urandom(KEY_BYTES))

    async def challenge(self, _request: bytes, context: Any) -> pb.ChallengeResponse:
        """Where and how to call."""
        if self._tls_port and not _is_secure(context):
            return pb.ChallengeResponse(tls_port=self._tls_port)
        if not self._token:
            return pb.ChallengeResponse()
        return pb.ChallengeResponse(
            nonce=self._nonces.issue(os.urandom(SALT_BYTES), self._coordinator.now_s())
        )

    def guard(self, method: str, handler: Handler[R]) -> Handler[R]:
        """The handler, for callers that may call it."""

        async def guarded(request: bytes, context: Any) -> R:
            refusal = self.verdict(method, _authorization(context), secure=_is_secure(context))
            if refusal is not None:
                self._coordinator.turn_away(method, refusal)
                await context.abort(STATUS[refusal], SENTENCE[refusal])
            return await handler(request, context)

        return guarded

    def verdict(self, method: str, authorization: str, *, secure: bool) -> Refusal | None:
        """Why a call with this metadata is refused, or None; a nonce is used up by it."""
        if self._tls_port and not secure:
            return Refusal.NEEDS_TLS
        if not self._token:
            return None
        if not authorization:
            return Refusal.NO_TOKEN
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "bearer":
            right = hmac.compare_digest(rest.strip().encode(), self._token)
            return None if right else Refusal.WRONG_TOKEN
        said = read_credentials(authorization)
        if said is None:
            return Refusal.WRONG_TOKEN
        return self._judge(method, *said)

    def _judge(self, method: str, nonce: bytes, proof: bytes) -> Refusal | None:
        now_s = self._coordinator.now_s()
        if not self._nonces.is_good(nonce, now_s):
            return Refusal.STALE_NONCE
        if not hmac.compare_digest(proof, proof_of(self._token, method=method, nonce=nonce)):
            return Refusal.WRONG_TOKEN
        return None if self._nonces.spend(nonce, now_s) else Refusal.STALE_NONCE


def _is_secure(context: Any) -> bool:
    return bool(context.auth_context().get("transport_security_type") == [b"ssl"])


def _authorization(context: Any) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str):
            return value
    return ""
