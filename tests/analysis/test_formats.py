"""Tables as text."""

import csv
import io
import re

from gcr.analysis.formats import LATEX_SIGNS, Entry, Sheet, comma_separated, latex, markdown

NASTY = r"a_b & 50% of {x}$y^2 #1 ~ \cmd <i> |p| *s* [0]"
SHEET = Sheet(
    "runs: 50% ± 1",
    ["method", "K", "ours"],
    [[Entry(NASTY), Entry("–"), Entry("1.00 ± 0.10", bold=True)], [Entry("[er]"), Entry("200"), Entry("missing")]],
)


def test_markdown_keeps_its_columns():
    text = markdown([SHEET, SHEET], ["a | b"])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 * 4
    assert all(len(re.split(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert "**1.00 ± 0.10**" in text
    assert r"\<i\>" in text
    assert text.endswith("- a \\| b\n")


def test_markdown_of_text_with_line_breaks():
    sheet = Sheet("t", ["method"], [[Entry("two\nlines")]])
    assert "| two lines |" in markdown([sheet])


def test_latex_escapes_all_text():
    text = latex([SHEET], ["see [1] & <2>"])
    row = next(line for line in text.splitlines() if line.startswith("a"))
    assert row == (
        r"a\_b \& 50\% of \{x\}\$y\textasciicircum{}2 \#1 \textasciitilde{} \textbackslash{}cmd "
        r"\textless{}i\textgreater{} \textbar{}p\textbar{} {*}s{*} {[}0] & -- & \textbf{1.00 $\pm$ 0.10} \\"
    )
    assert r"{[}er] & 200 & missing \\" in text  # \\[ would be read as a distance
    assert r"\item see {[}1] \& \textless{}2\textgreater{}" in text
    assert r"\caption{runs: 50\% $\pm$ 1}" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for environment in ("table", "tabular", "itemize"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}") == 1
    assert [line for line in text.splitlines() if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]


def test_latex_escapes_every_special_sign():
    assert set("\\{}$&#%_^~") <= LATEX_SIGNS.keys()


def test_csv_reads_back():
    records = [
        {"method": 'er (folder=a, "b")', "mean": 1 / 3, "sem": None},
        {"method": "two\nlines", "mean": 2.0, "sem": 0.5},
    ]
    read = list(csv.DictReader(io.StringIO(comma_separated(records))))
    assert [row["method"] for row in read] == ['er (folder=a, "b")', "two\nlines"]
    assert float(read[0]["mean"]) == 1 / 3
    assert read[0]["sem"] == ""
    assert comma_separated([]) == ""
