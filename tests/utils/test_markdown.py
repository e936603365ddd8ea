"""Any name can be a cell of a table."""

from onward.utils.markdown import markdown_table


def test_a_table_stays_a_table():
    text = markdown_table(["model", "a|b"], [["one\ntwo", "1|2"], ["three\r\n", ""]], words=["model"])
    assert text == "| model | a\\|b |\n| --- | ---: |\n| one two | 1\\|2 |\n| three |  |\n"
