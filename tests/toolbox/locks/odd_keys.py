"""Keys that need escaping."""

from __future__ import annotations

ODD = {
    "slash": "a/b//c/",
    "percent": "100%",
    "escaped already": "a%2Fb",
    "hash mark": "a%~b",
    "newline": "a\nb\r\n",
    "emoji": "\N{PARTY POPPER}\N{FAMILY}\u200d",
    "dot": ".",
    "dots": "..",
    "dots in a path": "../../etc",
    "three dots": "...",
    "nul": "a\0b",
    "delete and C1": "\x7f\x80\x9f",
    "private use": "\ue000\uf8ff",
    "specials": "\ufff0\ufffd\uffff",
    "last plane": "\U0010ffff",
    "space": " ",
    "umlaut": "Konto-Äöü",
    "reserved": "zookeeper",
    "plus": "a+b",
}
