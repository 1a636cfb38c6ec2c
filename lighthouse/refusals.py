"""Refusals on the wire: which gRPC status and which sentence each of them gets."""

import grpc

from lighthouse.model import Refusal

# FAILED_PRECONDITION: do not try again; UNAUTHENTICATED: not in this way; the others: later.
STATUS: dict[Refusal, grpc.StatusCode] = {
    Refusal.SUPERSEDED: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.EVICTED: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.LEFT: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.REATTACHED: grpc.StatusCode.ABORTED,
    Refusal.WARMING_UP: grpc.StatusCode.UNAVAILABLE,
    Refusal.TABLE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.TOO_MANY_JOBS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.TOO_MANY_CALLS: grpc.StatusCode.ABORTED,
    Refusal.GOING_DOWN: grpc.StatusCode.UNAVAILABLE,
    Refusal.UNKNOWN: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.NOT_ADMITTED: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.NEEDS_TLS: grpc.StatusCode.UNAUTHENTICATED,
    Refusal.NO_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Refusal.WRONG_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Refusal.STALE_NONCE: grpc.StatusCode.ABORTED,
}

SENTENCE: dict[Refusal, str] = {
    Refusal.SUPERSEDED: "superseded: a newer incarnation of this group has taken its place",
    Refusal.EVICTED: "evicted: this incarnation was counted out, start a new one",
    Refusal.REATTACHED: "reattached: this rank has opened another stream",
    Refusal.LEFT: "left: this incarnation has said goodbye, start a new one",
    Refusal.WARMING_UP: "warming_up: this server has just begun and waits for those on record, try again",
    Refusal.TABLE_FULL: "table_full: too many replicas in this job, try again when some have gone",
    Refusal.TOO_MANY_JOBS: "too_many_jobs: this Lighthouse serves as many jobs as it can",
    Refusal.TOO_MANY_CALLS: "too_many_calls: this replica asked again while it was waiting",
    Refusal.GOING_DOWN: "going_down: this Lighthouse is being stopped, try again",
    Refusal.UNKNOWN: "unknown: no group of this replica id is attached here, attach first",
    Refusal.NOT_ADMITTED: "not_admitted: a token is set here, attach with it first (trainer: --token-file)",
    Refusal.NEEDS_TLS: "needs_tls: this is only spoken over TLS here, give --tls-ca",
    Refusal.NO_TOKEN: "no_token: the job's token is missing, give --token-file",
    Refusal.WRONG_TOKEN: "wrong_token: this Lighthouse has another token, give both the same --token-file",
    Refusal.STALE_NONCE: "stale_nonce: that nonce was used already or is too old, ask for another",
}
