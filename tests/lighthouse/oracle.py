"""The decision a second time, written to be obvious instead of good: for comparison only.

It asks one plain question after the other, over plain sets, and shares no code with the decision.
"""

from lighthouse.quorum import Reason, Rules, Situation


def expected(situation: Situation, rules: Rules, now_s: float) -> Reason | list[str]:
    """The reason to wait, or the replica ids of the quorum in order."""
    asking = set(situation.asks)
    if not asking:
        return Reason.NO_ASKS
    longest_wait_s = max(now_s - ask.joined_s for ask in situation.asks.values())
    patience_is_over = longest_wait_s >= rules.join_timeout_s

    shrinking = False
    for ask in situation.asks.values():
        if ask.member.shrink_only and situation.had_quorum:
            shrinking = True
    chosen = {key for key in asking if key in situation.members} if shrinking else asking

    still_warm = now_s < situation.warm_until_s
    if still_warm and situation.unheard:
        return Reason.WARMING_UP
    if still_warm and situation.gathering and not rules.torchft_rules:
        return Reason.WARMING_UP

    if rules.torchft_rules:
        fast = situation.had_quorum and not situation.members_lost
        for key in situation.members:
            if key not in asking:
                fast = False
        awaited = set() if fast else set(situation.living)
        voters = set() if fast else set(situation.living)
    elif situation.members:
        awaited = set(situation.members)
        voters = set(situation.members) | set(situation.asked)
    else:
        if len(asking) < rules.expected_groups and not patience_is_over:
            return Reason.EXPECTED_GROUPS
        if rules.expected_groups > 0 and len(asking) >= rules.expected_groups:
            awaited, voters = set(), set(situation.asked)
        else:
            awaited, voters = set(situation.living), set(situation.living)

    absent = awaited - asking
    if absent and not patience_is_over:
        all_members = all(key in situation.members for key in absent)
        return Reason.MEMBER_NOT_ASKING if all_members else Reason.STRAGGLERS

    if len(chosen) == 0 or len(chosen) < rules.min_replicas:
        return Reason.MIN_REPLICAS
    if len(chosen) <= len(voters) / 2:
        return Reason.NO_MAJORITY

    if not rules.torchft_rules:
        allowed = False
        for key in chosen:
            step = situation.asks[key].member.step
            has_a_state = step > 0 or situation.record_step <= 1
            if step >= situation.record_step or (key in situation.members and has_a_state):
                allowed = True
        if not allowed:
            return Reason.BELOW_RECORD
    return sorted(situation.asks[key].member.id.text for key in chosen)
