"""Progress on a terminal and elsewhere."""

import io

from harness.repro import ticker


class Terminal(io.StringIO):
    def isatty(self):
        return True


def told(stream, monkeypatch, seconds):
    times = iter(seconds)
    monkeypatch.setattr(ticker.time, "monotonic", lambda: next(times))
    shown = ticker.Ticker(stream)
    for number in range(len(seconds) - 1):
        shown.tick(f"{number} histories")
    shown.say("done")
    shown.end()
    return stream.getvalue()


def test_elsewhere_a_plain_line_now_and_then(monkeypatch):
    text = told(io.StringIO(), monkeypatch, [0.0, 1.0, 11.0, 12.0, 22.0])
    assert text == "1 histories\n3 histories\ndone\n"


def test_a_terminal_has_one_line_that_changes(monkeypatch):
    text = told(Terminal(), monkeypatch, [0.0, 1.0, 1.1, 2.0])
    assert text.count("\n") == 1 and text.endswith("done\n")
    assert "0 histories" in text and "1 histories" not in text and "2 histories" in text
