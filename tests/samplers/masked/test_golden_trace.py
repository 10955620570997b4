"""The whole decode order of one seeded toy model: a change of it changes results, and must be intended."""

from __future__ import annotations

import pytest

from tests.samplers.toys import fill, prompts, toy

# (family, spec, arguments) -> commit step of each generated position, one line a row
GOLDEN: dict[tuple[str, str, str], tuple[str, str]] = {
    ("llada", "sequential@none", "greedy"): ("bdcahefgij kskksoskkk", "dcabghefikjl pskkkpksooso"),
    ("llada", "threshold:tau=0.4@dual", "greedy"): ("acbafdedhg kskkkookak", "cdabhfegijij dhkkkpkssksk"),
    ("llada", "threshold:tau=0.4@dual", "guided"): ("abcaddedfg kkkksojkos", "cbaafegdhkji kskkkpossakk"),
    ("llada", "fixed:steps=6,order=random@prefix", "sampled"): ("bbaadccdef dddkssooko", "bbaadcdcefef benfkkbjkdos"),
    ("llada", "random+fixed@none", "greedy"): ("dcbagefhij kskkkoskka", "cdabhfgejlik pskkskposooo"),
    ("llada", "margin+threshold:tau=0.3@prefix", "sampled"): ("acdbhfgeij enkkoosjso", "dcabfghejkil kfnkpskssska"),
    ("dream", "sequential@dual:refresh=3", "greedy"): ("abdcfeghij pdakokopjc", "abdchgfejikl jipkikkkospk"),
    ("dream", "factor@dual", "sampled"): ("abdcehfgij pdkkoasopj", "acdbhgfeijlk jinkikkkoais"),
    ("dream", "entropy_threshold:tau=1.5@prefix", "greedy"): ("abcdgefehi pdacpjpkop", "abdcefgejhik jipkhcskosls"),
    ("dream", "threshold:tau=0.4@dual:reference=true", "greedy"): (
        "abdceffghi pdakopsoko",
        "abdcegffhjik jipkhckkopso",
    ),
    ("sdar", "threshold:tau=0.4@dual", "sampled"): ("cabefgdihh okoookkkss", "bacdceffggih ksssoosssskk"),
    ("shifted-sdar", "sequential@prefix", "greedy"): ("abcfegdjih pcpgkokoss", "abfcdeigjhlk cggslpckosfs"),
    ("llada", "credit+threshold:tau=0.5@dual", "greedy"): (
        "abcaedddgf kkkksookak",
        "cdabhfegikij dhkkkpkssksk",
    ),
    ("dream", "credit:free=true+threshold:tau=0.5@none", "sampled"): (
        "abdcehfgij pdkkopsopj",
        "acdbfgeeihjk jipkiskklscn",
    ),
    ("llada", "threshold:tau=0.5+localleap:relaxed=0.2@prefix", "greedy"): (
        "bdcaeeeegf kskkoookak",
        "cbadeeeeffff ppkhkkkossss",
    ),
    ("dream", "entropy_bound:gamma=1.0@dual", "sampled"): (
        "aabbecddff pekfsklklk",
        "abcadefghihi jcdfslpoplko",
    ),
    ("llada", "klass:tau=0.3,kl=0.5,history=1@none", "greedy"): (
        "bccagdfeih kkkkkojkak",
        "dcabffefhhgh pskkkkksoooo",
    ),
    ("sdar", "hierarchy:high=0.6,low=0.3@none", "guided"): (
        "bcafedehgh ksolkkkksk",
        "badecfhgggij smfkssssssss",
    ),
}  # fmt: skip
LAWS = {"greedy": {}, "sampled": {"temperature": 0.8, "top_p": 0.9}, "guided": {"cfg": 1.5}}


def order(family: str, spec: str, distribution: str) -> tuple[str, ...]:
    """Commit steps and tokens as letters, so that a change is easy to see."""
    got = fill(toy(family, seed=20, sharp=1.2), spec, prompts((5, 2), seed=20), (10, 12), **LAWS[distribution])
    lines = []
    for row, start in enumerate((5, 2)):
        end = int(got.trace.lengths[row])
        steps = "".join(chr(ord("a") + int(step)) for step in got.trace.commit_step[row, start:end])
        lines.append(steps + " " + "".join(chr(ord("a") + int(token)) for token in got.tokens[row, start:end]))
    return tuple(lines)


@pytest.mark.parametrize("case", GOLDEN, ids=" ".join)
def test_the_decode_order_stays_what_it_is(case: tuple[str, str, str]) -> None:
    assert order(*case) == GOLDEN[case]
