"""Refusals on the wire: which gRPC status and which sentence each of them gets."""

import grpc

from lighthouse.model import Refusal

# FAILED_PRECONDITION: do not try again; the others: later.
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
}
