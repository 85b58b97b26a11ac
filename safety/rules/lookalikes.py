"""Letters of Latin, Greek, Cyrillic, Armenian, Cherokee, Coptic and Lisu that look like an ASCII letter.

Data: the single-letter rows of confusables.txt of Unicode Technical Standard 39 (by way of the package
confusable_homoglyphs 3.3.1, MIT), reduced to characters that case folding leaves alone, each with the one letter it
looks like in lower case, or else in upper case. Copyright Unicode, Inc.; used under the Unicode License v3.
Invariant: a function of the case-folded character, so a text and a word that differ in case only still agree.
"""

_ROWS = {
    "a": "\u0251\u03b1\u0430\u13aa\ua4ee",
    "b": "\u0185\u03b2\u0432\u044c\u13cf\u13f4\ua4d0\ua7b5",
    "c": "\u0441\u13df\u1d04\u2ca5\ua4da",
    "d": "\u0501\u13a0\u13e7\ua4d2\ua4d3",
    "e": "\u03b5\u0435\u04bd\u13ac\ua4f0\uab32",
    "f": "\u03dd\u0584\u1e9d\ua4dd\ua799\uab35",
    "g": "\u018d\u0261\u050d\u0581\u13c0\u13f3\u1d83\ua4d6",
    "h": "\u03b7\u043d\u04bb\u0570\u13bb\u13c2\u2c8f\ua4e7",
    "i": "\u0131\u0269\u026a\u03b9\u0456\u04cf\u13a5\ua647",
    "j": "\u029d\u03f3\u0458\u13ab\ua4d9",
    "k": "\u03ba\u043a\u13e6\u2c95\ua4d7",
    "l": "\u01c0\u13de\u2c93\u2cd1\ua4e1\ua4f2",
    "m": "\u03bc\u03fb\u043c\u13b7\u2c99\ua4df",
    "n": "\u0578\u057c\u2c9b\ua4e0",
    "o": "\u03bf\u03c3\u043e\u0585\u1d0f\u1d11\u2c9f\ua4f3\uab3d",
    "p": "\u03c1\u0440\u13e2\u2ca3\ua4d1",
    "q": "\u051b\u0563\u0566",
    "r": "\u0280\u0433\u13a1\u13d2\u1d26\u2c85\ua4e3\uab47\uab48",
    "s": "\u01bd\u0455\u057f\u13d5\u13da\ua4e2\ua731",
    "t": "\u03c4\u0442\u13a2\u2ca7\ua4d4",
    "u": "\u028b\u03c5\u057d\u1d1c\ua4f4\ua79f\uab4e\uab52",
    "v": "\u03bd\u0475\u13d9\u1d20\ua4e6",
    "w": "\u026f\u0461\u051d\u0561\u13b3\u13d4\u1d21\ua4ea",
    "x": "\u03c7\u0445\u2cad\ua4eb\uab53",
    "y": "\u0263\u028f\u03b3\u0443\u04af\u13a9\u13bd\u1d8c\u1eff\u2ca9\ua4ec\uab5a",
    "z": "\u03b6\u13c3\u1d22\ua4dc",
}
# Their prototype is the letter under an overlay: b, d, h, i, l, o, t, z with a stroke.
_STROKES = {
    "b": "\u0180",
    "d": "\u0111",
    "h": "\u0127",
    "i": "\u0268",
    "l": "\u0142",
    "o": "\u00f8",
    "t": "\u0167",
    "z": "\u01b6",
}
LOOKALIKES = {ord(char): letter for rows in (_ROWS, _STROKES) for letter, chars in rows.items() for char in chars}
