import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from informers.api.patch import (
    JSONPatchTestFailed,
    MergeRule,
    PatchError,
    apply_json,
    apply_merge,
    diff,
    equal,
    json_patch,
    needs_json_patch,
    strategic_merge,
)
from informers.meta.errors import ConfigError

quick = settings(deadline=None)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
keys = st.text(alphabet="ab~/é", max_size=2)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
objects = st.dictionaries(keys, values, max_size=4)
without_null = st.recursive(
    scalars.filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
)
objects_without_null = st.dictionaries(keys, without_null, max_size=4)


class TestEqual:
    @pytest.mark.parametrize(
        ("a", "b"),
        [(True, 1), (False, 0), (1, 1.0), (0, ""), (None, False), ([], {}), ("1", 1), (0.0, -0.0), ([1], [1, 2])],
    )
    def test_types_tell_values_apart(self, a: object, b: object) -> None:
        assert not equal(a, b)
        assert not equal({"x": [a]}, {"x": [b]})

    @quick
    @given(values)
    def test_a_copy_is_equal(self, value: Any) -> None:
        assert equal(value, copy.deepcopy(value))

    def test_key_order_does_not_matter_and_item_order_does(self) -> None:
        assert equal({"a": 1, "b": 2}, {"b": 2, "a": 1})
        assert not equal([1, 2], [2, 1])

    def test_not_a_number_is_equal_to_itself(self) -> None:
        assert equal(float("nan"), float("nan"))


class TestDiff:
    @quick
    @given(objects_without_null, objects_without_null)
    def test_applying_it_gives_what_was_wanted(self, current: Any, wanted: Any) -> None:
        before = copy.deepcopy((current, wanted))

        patch = diff(current, wanted)

        assert equal(current if patch is None else apply_merge(current, patch), wanted)
        assert equal([current, wanted], list(before))

    @quick
    @given(objects)
    def test_of_equals_is_none(self, value: Any) -> None:
        assert diff(value, copy.deepcopy(value)) is None

    @quick
    @given(objects_without_null, objects_without_null)
    def test_is_the_smallest(self, current: Any, wanted: Any) -> None:
        patch = diff(current, wanted) or {}

        for path in leaves(patch):
            assert not equal(apply_merge(current, without(patch, path)), wanted)

    @quick
    @given(objects, objects)
    def test_is_refused_exactly_when_a_null_must_be_stored(self, current: Any, wanted: Any) -> None:
        if needs_json_patch(current, wanted):
            with pytest.raises(PatchError, match="null"):
                diff(current, wanted)
        else:
            assert equal(apply_merge(current, diff(current, wanted) or {}), wanted)
        assert equal(apply_json(current, json_patch(current, wanted)), wanted)

    def test_nested_change_names_only_what_changes(self) -> None:
        current = {"data": {"a": "1", "b": "2"}, "list": [1, 2]}

        assert diff(current, {"data": {"a": "1", "b": "3"}, "list": [1, 2]}) == {"data": {"b": "3"}}
        assert diff(current, {"data": {"a": "1", "b": "2"}, "list": [1]}) == {"list": [1]}
        assert diff(current, {"data": {"a": "1"}, "list": [1, 2]}) == {"data": {"b": None}}

    def test_a_null_that_stays_is_no_reason_to_refuse(self) -> None:
        assert diff({"a": None, "b": 1}, {"a": None, "b": 2}) == {"b": 2}
        assert diff({"a": 1}, {"a": [None]}) == {"a": [None]}

    def test_a_null_inside_a_new_object_cannot_be_stored(self) -> None:
        with pytest.raises(PatchError, match="/a~1b/c"):
            diff({}, {"a/b": {"c": None}})

    def test_a_type_change_is_a_change(self) -> None:
        assert diff({"a": 1}, {"a": 1.0}) == {"a": 1.0}
        assert diff({"a": 1}, {"a": True}) == {"a": True}
        assert diff({"a": {"b": 1}}, {"a": "x"}) == {"a": "x"}


class Exact(float):
    """A number that knows how it was written."""

    text = "0"


class TestNumbers:
    def test_big_integers_and_subclassed_numbers_survive(self) -> None:
        exact = Exact(0.1)
        wanted = {"big": 12345678901234567890123, "exact": exact, "list": [exact], "nested": {"x": {"y": exact}}}

        patch = diff({"nested": {}}, wanted)
        assert patch is not None
        merged = apply_merge({"nested": {}}, patch)
        patched = apply_json({"nested": {}}, json_patch({"nested": {}}, wanted))
        strategic = strategic_merge({"nested": {}}, wanted, lambda _path: None)

        for result in (merged, patched, strategic):
            assert result["big"] == 12345678901234567890123
            assert result["exact"] is exact
            assert result["list"][0] is exact
            assert result["nested"]["x"]["y"] is exact

    def test_a_subclass_equals_the_number_it_is(self) -> None:
        assert equal(Exact(0.5), 0.5)
        assert diff({"a": 0.5}, {"a": Exact(0.5)}) is None


class TestApplyMerge:
    # The test cases of RFC 7396, appendix A.
    @pytest.mark.parametrize(
        ("value", "patch", "result"),
        [
            ({"a": "b"}, {"a": "c"}, {"a": "c"}),
            ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
            ({"a": "b"}, {"a": None}, {}),
            ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
            ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
            ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
            ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
            (["a", "b"], ["c", "d"], ["c", "d"]),
            ({"a": "b"}, ["c"], ["c"]),
            ({"a": "foo"}, None, None),
            ({"a": "foo"}, "bar", "bar"),
            ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ],
    )
    def test_examples_of_the_rfc(self, value: Any, patch: Any, result: Any) -> None:
        assert equal(apply_merge(value, patch), result)

    @quick
    @given(values, values)
    def test_twice_is_once_and_nothing_given_changes(self, value: Any, patch: Any) -> None:
        before = copy.deepcopy((value, patch))

        once = apply_merge(value, patch)

        assert equal(apply_merge(once, patch), once)
        assert equal([value, patch], list(before))


class TestApplyJSON:
    @quick
    @given(values, values)
    def test_json_patch_gives_what_was_wanted_here_and_in_another_library(self, current: Any, wanted: Any) -> None:
        before = copy.deepcopy(current)

        operations = json_patch(current, wanted)

        assert equal(apply_json(current, operations), wanted)
        assert equal(jsonpatch.apply_patch(copy.deepcopy(current), operations), wanted)
        assert equal(current, before)

    @quick
    @given(values)
    def test_json_patch_of_equals_is_empty(self, value: Any) -> None:
        assert json_patch(value, copy.deepcopy(value)) == []

    @quick
    @given(values, values)
    def test_patches_of_another_library_apply(self, current: Any, wanted: Any) -> None:
        operations = json.loads(jsonpatch.make_patch(current, wanted).to_string())

        # That library takes 1, 1.0 and True for the same.
        assert apply_json(current, operations) == wanted

    @pytest.mark.parametrize(
        ("value", "operations", "result"),
        [
            ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"foo": "bar", "baz": "qux"}),
            ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "q"}], {"foo": ["bar", "q", "baz"]}),
            ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
            ({"baz": 1, "foo": 2}, [{"op": "remove", "path": "/baz"}], {"foo": 2}),
            ({"foo": [1, 2, 3]}, [{"op": "remove", "path": "/foo/1"}], {"foo": [1, 3]}),
            ({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
            ({"a": 1}, [{"op": "replace", "path": "", "value": [1]}], [1]),
            ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
            ({"l": [1, 2, 3]}, [{"op": "move", "from": "/l/1", "path": "/l/2"}], {"l": [1, 3, 2]}),
            ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
            ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
            ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
            ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
            ({"a": {"b": 1}}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": {"b": 1}}),
        ],
    )
    def test_operations(self, value: Any, operations: Any, result: Any) -> None:
        assert equal(apply_json(value, operations), result)

    @pytest.mark.parametrize(
        "operation",
        [
            {"op": "remove", "path": "/no"},
            {"op": "replace", "path": "/no", "value": 1},
            {"op": "add", "path": "/no/no", "value": 1},
            {"op": "add", "path": "/list/3", "value": 1},
            {"op": "add", "path": "/list/01", "value": 1},
            {"op": "remove", "path": "/list/-"},
            {"op": "remove", "path": "/list/-1"},
            {"op": "add", "path": "/text/0", "value": 1},
            {"op": "move", "from": "/map", "path": "/map/inside"},
            {"op": "copy", "from": "/no", "path": "/x"},
            {"op": "test", "path": "/no", "value": None},
            {"op": "add", "path": "/x"},
            {"op": "add", "path": "x", "value": 1},
            {"op": "add", "value": 1},
            {"op": "spin", "path": "/x"},
            {},
            "text",
        ],
    )
    def test_what_cannot_be_applied_is_refused(self, operation: Any) -> None:
        document = {"list": [1, 2], "text": "x", "map": {"a": 1}}

        with pytest.raises(PatchError) as caught:
            apply_json(document, [{"op": "add", "path": "/seen", "value": 1}, operation])

        assert isinstance(caught.value, ConfigError)
        assert document == {"list": [1, 2], "text": "x", "map": {"a": 1}}

    @pytest.mark.parametrize("value", [True, "1", None, [1], 2])
    def test_a_failing_test_says_so(self, value: Any) -> None:
        with pytest.raises(JSONPatchTestFailed):
            apply_json({"a": 1}, [{"op": "test", "path": "/a", "value": value}])

    def test_a_copy_does_not_share(self) -> None:
        result = apply_json(
            {"a": {"x": 1}},
            [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "replace", "path": "/b/x", "value": 2}],
        )

        assert result == {"a": {"x": 1}, "b": {"x": 2}}

    @pytest.mark.parametrize(
        ("operations", "result"),
        [
            ([{"op": "replace", "path": "/new", "value": 1}], {"list": [1, 2], "new": 1}),
            ([{"op": "add", "path": "/new"}], {"list": [1, 2], "new": None}),
            ([{"op": "test", "path": "/no", "value": None}], {"list": [1, 2]}),
            ([{"op": "remove", "path": "/list/-1"}], {"list": [1]}),
            ([{"op": "add", "path": "/list/-1", "value": 3}], {"list": [1, 2, 3]}),
            ([{"op": "replace", "path": "/list/-2", "value": 3}], {"list": [3, 2]}),
        ],
    )
    def test_lenient_takes_what_an_api_server_takes(self, operations: Any, result: Any) -> None:
        assert equal(apply_json({"list": [1, 2]}, operations, lenient=True), result)

    def test_lenient_tells_whole_numbers_from_floats(self) -> None:
        with pytest.raises(JSONPatchTestFailed):
            apply_json({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], lenient=True)


RULES = {
    ("containers",): MergeRule(merge=True, key="name"),
    ("containers", "ports"): MergeRule(merge=True, key="port"),
    ("finalizers",): MergeRule(merge=True),
    ("whole",): MergeRule(replace=True),
}


def strategic(value: Any, patch: Any) -> Any:
    return strategic_merge(value, patch, RULES.get)


class TestStrategicMerge:
    @pytest.mark.parametrize(
        ("value", "patch", "result"),
        [
            pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="maps are merged"),
            pytest.param({"a": 1, "b": 1}, {"a": None, "z": None}, {"b": 1}, id="null deletes"),
            pytest.param({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}, id="nulls of new maps are dropped"),
            pytest.param({"args": [1, 2]}, {"args": [3]}, {"args": [3]}, id="lists without a rule are replaced"),
            pytest.param({"whole": {"a": 1}}, {"whole": {"b": 1}}, {"whole": {"b": 1}}, id="a map may be replaced"),
            pytest.param({"a": [1]}, {"a": {"x": 1}}, {"a": {"x": 1}}, id="another type replaces"),
            pytest.param({"a": 1, "b": 2}, {"$patch": "replace", "c": 3}, {"c": 3}, id="replace of the whole"),
            pytest.param({"m": {"a": 1}}, {"m": {"$patch": "delete"}}, {"m": {}}, id="delete of a map"),
            pytest.param(
                {"finalizers": ["a", "b"]},
                {"finalizers": ["c", "a"]},
                {"finalizers": ["c", "a", "b"]},
                id="scalars are joined",
            ),
            pytest.param(
                {"finalizers": ["a", "b", "c"]},
                {"$deleteFromPrimitiveList/finalizers": ["b", "z"]},
                {"finalizers": ["a", "c"]},
                id="scalars are deleted",
            ),
            pytest.param(
                {"m": {"a": 1, "b": 2}},
                {"m": {"$retainKeys": ["a", "c"], "c": 3}},
                {"m": {"a": 1, "c": 3}},
                id="keys are retained",
            ),
        ],
    )
    def test_directives(self, value: Any, patch: Any, result: Any) -> None:
        assert equal(strategic(value, patch), result)

    def test_items_are_merged_by_their_key_at_every_depth(self) -> None:
        value = {"containers": [{"name": "a", "ports": [{"port": 1, "x": 1}]}, {"name": "b"}]}
        patch = {"containers": [{"name": "a", "ports": [{"port": 1, "y": 2}, {"port": 2}]}, {"name": "c"}]}

        assert strategic(value, patch) == {
            "containers": [
                {"name": "a", "ports": [{"port": 1, "x": 1, "y": 2}, {"port": 2}]},
                {"name": "c"},
                {"name": "b"},
            ]
        }

    def test_items_are_deleted_and_lists_replaced(self) -> None:
        value = {"containers": [{"name": "a"}, {"name": "b"}]}

        assert strategic(value, {"containers": [{"name": "a", "$patch": "delete"}]}) == {"containers": [{"name": "b"}]}
        assert strategic(value, {"containers": [{"$patch": "replace"}, {"name": "z"}]}) == {
            "containers": [{"name": "z"}]
        }

    def test_set_element_order_sorts_the_merged_list(self) -> None:
        value = {"containers": [{"name": "a"}, {"name": "b"}, {"name": "own"}]}
        patch = {
            "$setElementOrder/containers": [{"name": "b"}, {"name": "new"}, {"name": "a"}],
            "containers": [{"name": "new"}],
        }

        assert [each["name"] for each in strategic(value, patch)["containers"]] == ["b", "new", "a", "own"]

    @pytest.mark.parametrize(
        ("patch", "is_malformed"),
        [
            ({"containers": [{"image": "x"}]}, False),
            ({"m": {"$patch": "spin"}}, False),
            ({"m": {"$patch": "merge", "b": 2}}, False),
            ({"containers": [{"name": "a", "$patch": "merge"}]}, False),
            ({"m": {"$retainKeys": ["a"], "b": 1}}, True),
            ({"m": {"$retainKeys": "a"}}, True),
            ({"$setElementOrder/containers": 5}, True),
            ({"$setElementOrder": []}, True),
            ([], True),
        ],
    )
    def test_a_patch_that_breaks_the_rules_is_refused(self, patch: Any, is_malformed: bool) -> None:
        value = {"containers": [{"name": "a"}], "m": {"a": 1}}

        with pytest.raises(PatchError) as caught:
            strategic(value, patch)

        assert caught.value.is_malformed is is_malformed

    def test_an_order_that_the_list_does_not_follow_is_refused(self) -> None:
        patch = {
            "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
            "containers": [{"name": "b"}, {"name": "a"}],
        }

        with pytest.raises(PatchError, match="order"):
            strategic({"containers": [{"name": "a"}]}, patch)

    def test_items_are_found_by_the_value_and_the_type_of_their_key(self) -> None:
        value = {"containers": [{"name": 1}, {"name": True}, {"name": "1"}, {"name": [1]}]}
        patch = {"containers": [{"name": 1.0, "x": 1}, {"name": [1], "x": 1}]}

        found = strategic(value, patch)["containers"]

        assert sorted(found, key=str) == sorted(
            [{"name": 1.0, "x": 1}, {"name": True}, {"name": "1"}, {"name": [1], "x": 1}], key=str
        )

    @pytest.mark.parametrize("in_place", [True, False])
    def test_work_grows_with_the_length_of_lists_and_not_with_its_square(self, in_place: bool) -> None:
        compared = 0

        class Word:
            def __init__(self, text: str) -> None:
                self.text = text

            def __eq__(self, other: object) -> bool:
                nonlocal compared
                compared += 1
                return isinstance(other, Word) and self.text == other.text

            def __hash__(self) -> int:
                return hash(self.text)

        def words() -> list[Word]:
            return [Word(f"w{number}") for number in range(200)]

        def items(**more: Any) -> list[Any]:
            return [{"name": word, **more} for word in words()]

        def merged(value: Any, patch: Any) -> Any:
            return strategic_merge(value, patch, RULES.get, in_place=in_place)

        whole = {"containers": items(), "finalizers": words()}

        assert equal(merged({"containers": [{"name": "x"}], "finalizers": []}, whole)["finalizers"], words())
        assert equal(merged(whole, {"containers": items(x=1), "finalizers": words()})["containers"], items(x=1))
        assert merged(whole, {"containers": items(**{"$patch": "delete"})})["containers"] == []
        assert merged(whole, {"$deleteFromPrimitiveList/finalizers": words()})["finalizers"] == []
        assert compared < 200 * 50

    @quick
    @given(objects_without_null, objects_without_null)
    def test_without_rules_it_is_a_merge_patch(self, value: Any, patch: Any) -> None:
        before = copy.deepcopy((value, patch))

        assert equal(strategic_merge(value, patch, lambda _path: None), apply_merge(value, patch))
        assert equal([value, patch], list(before))


def leaves(patch: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(patch, dict) or (not patch and path):
        return [path]
    return [leaf for key, value in patch.items() for leaf in leaves(value, (*path, key))]


def without(patch: Any, path: tuple[str, ...]) -> Any:
    trimmed = copy.deepcopy(patch)
    inner = trimmed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return trimmed
