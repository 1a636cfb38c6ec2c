"""The decision against the simple second implementation, on random situations."""

from hypothesis import given, settings
from oracle import expected
from test_lighthouse_quorum import situations

from lighthouse.quorum import Ready, Reason, Rules, Situation, decide

Case = tuple[Situation, Rules, float]


def outcome(case: Case) -> Reason | list[str]:
    decision = decide(*case)
    if isinstance(decision, Ready):
        return [member.id.text for member in decision.members]
    return decision.reason


@settings(max_examples=2000)
@given(situations())
def test_the_decision_is_what_the_simple_one_says(case: Case) -> None:
    assert outcome(case) == expected(*case)
