from __future__ import annotations

from informers.cache.silence import Silence


def alarm(silence: Silence, *, was_answered: bool = True, has_received: bool = False) -> Silence:
    return silence.after_alarm(was_answered=was_answered, has_received=has_received)


def test_one_alarm_changes_nothing() -> None:
    assert alarm(Silence.of(90), has_received=True).limit == 90
    assert alarm(Silence.of(90)).limit == 90


def test_an_alarm_about_the_successor_too_was_a_false_one_and_doubles_the_limit() -> None:
    found = []
    silence = alarm(Silence.of(90), has_received=True)
    for _ in range(3):
        silence = alarm(silence)
        found.append(silence.limit)

    assert found == [180, 360, 720]


def test_a_byte_sets_the_limit_back() -> None:
    silence = alarm(alarm(Silence.of(90)))

    assert silence.after_byte() == Silence.of(90)
    assert alarm(silence, has_received=True).limit == 90
    assert alarm(alarm(silence, has_received=True)).limit == 180


def test_a_server_that_does_not_answer_is_no_false_alarm() -> None:
    silence = alarm(Silence.of(90), has_received=True)
    for _ in range(3):
        silence = alarm(silence, was_answered=False)

    assert silence.limit == 90
    assert alarm(silence).limit == 90
