"""Lower rooms never import higher ones, and the library never imports the studies."""

from import_graph import upward


def test_no_import_goes_upward():
    assert upward() == []
