"""The commands of docs/update.md, run in their order."""

import re
import shlex
from pathlib import Path

from conftest import ROOT

from gcr.cli.main import run_cli


def test_the_commands_of_the_page(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/update.md").read_text()
    monkeypatch.chdir(tmp_path)
    outputs = []
    for language, block in re.findall(r"^```(python|console)\n(.*?)^```", page, re.S | re.M):
        if language == "python":
            exec(compile(block, "update.md", "exec", dont_inherit=True), {})
            continue
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "gcr"
            assert run_cli(words[1:]) == 0, line
            outputs.append(capsys.readouterr().out)
    assert Path("predictions.csv").read_text().startswith("file,class,probability\nmonday-3/7/0.png,7,")
    assert Path("state/inspect.html").exists()
    (shown,) = re.findall(r"^```text\n(.*?)^```", page, re.S | re.M)
    classes = [re.match(r"│ (\w[\w, ]*)", line) for line in shown.splitlines()]
    assert [found[1].strip() for found in classes if found] == [*"0123456", "old, mean"]
    assert outputs[-2:] == ["state is at version 2 again\n", "state: 1 checked, 0 damaged\n"]
