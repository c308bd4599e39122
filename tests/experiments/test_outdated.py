"""A stored result is compared with the settings that its preset has today."""

import dataclasses
import json

import pytest

from aleator.experiments.controlled.landscape import Landscape
from aleator.experiments.controlled.run import Setting
from aleator.experiments.outdated import note_on_changes
from aleator.experiments.runner import Row

SETTING = Setting(name="ambiguous", recipe={"steps": 10})


def result(setting=SETTING, seeds=(4, 5), preset="paper", **parameters):
    fields = json.loads(json.dumps(dataclasses.asdict(setting)))
    row = {"setting": setting.name, "loss": setting.loss, "seeds": list(seeds), "parameters": {**fields, **parameters}}
    return {"experiment": "recovery", "preset": preset, "rows": [row]}


def test_the_same_settings_have_no_note():
    assert note_on_changes(result(), [Row(SETTING, (4, 5))]) == ""
    assert note_on_changes(result(no_longer_a_field=3), [Row(SETTING, (4, 5))]) == ""


@pytest.mark.parametrize("name", ["kernel", "kappa_range", "recipe"])
def test_a_changed_field_is_named(name):
    note = note_on_changes(result(**{name: "other"}), [Row(SETTING, (4, 5))])
    assert note.startswith("**Made with earlier settings")
    assert note.endswith(f"Changed since: `{name}`.")


def test_only_the_rows_that_changed_are_named():
    other = dataclasses.replace(SETTING, name="clear")
    both = {**result(), "rows": result()["rows"] + result(other, kernel="other")["rows"]}
    note = note_on_changes(both, [Row(SETTING, (4, 5)), Row(other, (4, 5))])
    assert note.startswith('**"clear": made with earlier settings')


def test_fields_that_are_younger_than_the_result_had_their_default():
    old = result()
    del old["rows"][0]["parameters"]["rule"]
    assert note_on_changes(old, [Row(SETTING, (4, 5))]) == ""
    today = Row(dataclasses.replace(SETTING, rule="rejected-pair"), (4, 5))
    assert "before the preset followed the published code's laws" in note_on_changes(old, [today])
    note = note_on_changes({**old, "preset": "best"}, [today])
    assert "`rule`" in note
    assert "published" not in note


def test_settings_inside_settings_are_compared():
    row = Landscape("matched", SETTING, 40)
    assert note_on_changes(result(row), [Row(row, (4, 5))]) == ""
    changed = Row(dataclasses.replace(row, setting=dataclasses.replace(SETTING, kernel="vmf")), (4, 5))
    assert "`kernel`" in note_on_changes(result(row), [changed])


def test_rows_and_seeds_that_were_not_run_are_named():
    others = [Row(dataclasses.replace(SETTING, name=f"row {i}"), (4,)) for i in range(6)]
    assert note_on_changes(result(), others) == (
        'Not run yet: "row 0", "row 1", "row 2", "row 3" and 2 more. No longer in the preset: "ambiguous".'
    )
    elk, hib = (dataclasses.replace(SETTING, name="M 1", loss=loss) for loss in ("elk", "hib"))
    note = note_on_changes(result(elk), [Row(elk, (4, 5)), Row(hib, (4,))])
    assert note == 'Not run yet: "M 1" (hib).'  # a name that two losses share
    assert note_on_changes(result(), [Row(SETTING, (4, 5, 6))]) == 'The preset has more seeds today: "ambiguous".'
