"""What notebooks show of a topology: pictures and tables, without JavaScript. (Ledgers: test_ledger_reader.py.)"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import hailstorm as hs

SVG = "{http://www.w3.org/2000/svg}"


def trending() -> hs.Topology:
    storm = hs.Topology("trending")
    tweets = storm.spout("tweets", hs.Log("x"), schema="user STRING, `a <b>` INT")
    counts = tweets.fold("counts", by="user", n=hs.count())
    counts.top("top", 10, by="n").sink("board", hs.Console())
    tweets.union("both", tweets.where("loud", "`a <b>` > 1")).sink("files", hs.Parquet("out"))
    return storm


def test_a_graph_is_a_picture_of_all_steps_and_edges() -> None:
    graph = trending().graph()
    picture = graph._repr_svg_()
    assert "<script" not in picture
    root = ElementTree.fromstring(picture)  # well formed, with names escaped
    boxes = [[text.text for text in box.findall(f"{SVG}text")] for box in root.findall(f"{SVG}g")]
    assert boxes == [
        ["tweets", "spout"],
        ["counts", "fold by user"],
        ["top", "top 10 by n"],
        ["board", "sink"],
        ["loud", "where"],
        ["both", "union"],
        ["files", "sink"],
    ]
    assert len(root.findall(f"{SVG}path")) == len(graph.edges)
    assert "user STRING, `a <b>` INT" in "".join(root.itertext())


def test_no_two_boxes_are_in_one_place_and_every_edge_goes_to_the_right() -> None:
    graph = trending().graph()
    root = ElementTree.fromstring(graph.svg())
    places = {}
    for box in root.findall(f"{SVG}g"):
        rect, text = box.find(f"{SVG}rect"), box.find(f"{SVG}text")
        assert rect is not None
        assert text is not None
        places[text.text] = (int(rect.attrib["x"]), int(rect.attrib["y"]))
    assert len(set(places.values())) == len(places)
    assert all(places[edge.source][0] < places[edge.target][0] for edge in graph.edges)


def test_a_topology_and_its_steps_show_themselves() -> None:
    storm = trending()
    assert storm._repr_html_().startswith("<p><b>trending</b></p><svg ")
    html = hs.Table(storm, "counts")._repr_html_()
    assert "counts: fold by user, declared at test_notebooks.py:15" in html
    assert "<tr><td>user</td><td>STRING</td><td>key</td></tr><tr><td>n</td><td>BIGINT</td><td></td></tr>" in html
    assert "<td>a &lt;b&gt;</td><td>INT</td>" in hs.Stream(storm, "tweets")._repr_html_()


def test_an_empty_topology_shows_itself_too() -> None:
    ElementTree.fromstring(hs.Topology("empty").graph().svg())
