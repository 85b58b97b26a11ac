"""The Lua loader: a script without a true header does not load, a call that does not fit it does not run."""

import pytest

from stores.lua import Arity, LuaScript, ScriptHeaderError

GOOD = """-- claim.lua: give one job to one worker.
-- KEYS 1 active zset | 2 leases zset
-- ARGV 1 now_ms int | 2 name str
--      | 3... entries
-- RETURNS {id} or nil.
-- ATOMIC: two workers never hold one job.
return nil
"""


class TestParse:
    def test_reads_keys_and_a_variable_tail(self) -> None:
        script = LuaScript.parse(name="claim.lua", text=GOOD)
        assert script.keys == Arity(count=2, tail=False)
        assert script.args == Arity(count=3, tail=True)

    def test_accepts_none(self) -> None:
        text = GOOD.replace("1 active zset | 2 leases zset", "none")
        assert LuaScript.parse(name="claim.lua", text=text).keys == Arity(count=0, tail=False)

    def test_refuses_a_name_that_is_not_the_file_s(self) -> None:
        with pytest.raises(ScriptHeaderError, match="must begin with"):
            LuaScript.parse(name="other.lua", text=GOOD)

    @pytest.mark.parametrize("label", ["KEYS", "ARGV", "RETURNS", "ATOMIC"])
    def test_refuses_a_header_without(self, label: str) -> None:
        with pytest.raises(ScriptHeaderError, match=label):
            LuaScript.parse(name="claim.lua", text=GOOD.replace(f"-- {label}", "-- Some"))

    def test_refuses_slots_that_are_not_numbered_in_order(self) -> None:
        with pytest.raises(ScriptHeaderError, match="slot 2"):
            LuaScript.parse(name="claim.lua", text=GOOD.replace("2 leases", "3 leases"))


class TestArity:
    def test_a_tail_takes_any_number_from_none(self) -> None:
        arity = Arity(count=3, tail=True)
        assert [arity.fits(given) for given in (1, 2, 3, 9)] == [False, True, True, True]

    def test_a_fixed_count_takes_that_count_only(self) -> None:
        assert [Arity(count=2, tail=False).fits(given) for given in (1, 2, 3)] == [False, True, False]
