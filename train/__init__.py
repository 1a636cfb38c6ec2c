"""The reference trainer, the local cluster that runs it on one machine, and the report on a run."""
