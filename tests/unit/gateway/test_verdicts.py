"""What a customer sees of the guardrails."""

from gateway.surface.verdicts import shown_verdicts
from safety.verdicts import Action, RuleState, Stage, Verdict


def line(rule: str, *, action: Action, stage: Stage = Stage.PROMPT, hits: int = 1) -> str:
    acted = hits > 0 and action is not Action.FLAG
    return Verdict(
        rule=rule, stage=stage, action=action, state=RuleState.RAN, hits=hits, acted=acted, spent_us=35
    ).line()


class TestShownVerdicts:
    def test_count_what_was_done_by_place_and_name_no_rule(self) -> None:
        shown = shown_verdicts(
            [
                line("project-zeus", action=Action.REDACT, hits=2),
                line("ssn", action=Action.REDACT),
                line("leak", action=Action.BLOCK, stage=Stage.OUTPUT),
            ]
        )
        assert shown == [
            {"stage": "prompt", "action": "redact", "matches": 3},
            {"stage": "output", "action": "block", "matches": 1},
        ]

    def test_tell_nothing_of_rules_that_flag_or_found_nothing(self) -> None:
        assert shown_verdicts([line("watch", action=Action.FLAG), line("quiet", action=Action.BLOCK, hits=0)]) == []

    def test_tell_nothing_of_a_line_that_cannot_be_read(self) -> None:
        assert shown_verdicts(["policy 7 v1", ""]) == []
