"""A terminal that is closed stops runs in good order, unless that is ignored, as under nohup."""

import os
import signal

import pytest

from gcr.runs.signals import stop_by_signal


@pytest.fixture(autouse=True)
def the_handler_of_before():
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_ignored_hangups_stay_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_by_signal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_hangup_stops_and_says_no_more_to_the_terminal(monkeypatch):
    closed = []
    monkeypatch.setattr("gcr.runs.signals.os.isatty", lambda output: output == 2)
    monkeypatch.setattr("gcr.runs.signals._write_nowhere", closed.append)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with stop_by_signal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.number == signal.SIGHUP
    assert closed == [[2]]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
