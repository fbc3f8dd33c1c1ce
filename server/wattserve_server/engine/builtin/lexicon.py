"""The words of the demo corpus: what can be reviewed, what can be said of it, and how much that weighs.

Weights are sentiment: +1 is a plain "good", -1 a plain "bad". Blocks are `weight | text` lines; in a text,
`{aspect}` is a thing of the domain and `{be}` agrees with it. Knows nothing about how clauses are joined.
"""

from __future__ import annotations

from dataclasses import dataclass

Weighted = tuple[tuple[float, str], ...]


def weighted(block: str) -> Weighted:
    pairs = (line.split("|", 1) for line in block.strip().splitlines())
    return tuple((float(weight), text.strip()) for weight, text in pairs)


def words(block: str) -> Weighted:
    """`weight | word word word` lines, one pair per word."""
    return tuple((weight, word) for weight, line in weighted(block) for word in line.split())


def items(block: str) -> tuple[str, ...]:
    return tuple(" ".join(item.split()) for item in block.strip().split(","))


@dataclass(frozen=True, slots=True)
class Domain:
    """One kind of thing that people review.

    turncoats: `aspect adjective` pairs whose adjective is praise here and blame elsewhere.
    asides: sentences without an opinion, some of them full of words that usually carry one.
    """

    subjects: tuple[str, ...]
    singular: tuple[str, ...]
    plural: tuple[str, ...]
    adjectives: Weighted
    facts: Weighted
    turncoats: Weighted
    asides: tuple[str, ...]


ADJECTIVES = words("""
    +1.7 | superb brilliant outstanding wonderful fantastic magnificent excellent flawless stunning remarkable
    +1.7 | marvelous perfect amazing exceptional splendid terrific phenomenal sublime
    +1.0 | good great solid lovely enjoyable impressive pleasant satisfying delightful charming nice likeable
    +1.0 | rewarding memorable refreshing clever
    +0.5 | decent fine okay acceptable adequate passable reasonable respectable serviceable
    -0.5 | average mediocre forgettable uneven unremarkable bland ordinary lackluster middling
    -1.0 | bad poor disappointing weak boring annoying frustrating unpleasant tedious sloppy clumsy
    -1.0 | underwhelming irritating tiresome dreary shoddy
    -1.7 | terrible awful horrible dreadful atrocious abysmal appalling disastrous pathetic unbearable
    -1.7 | horrendous hideous miserable laughable unforgivable
""")

INTENSIFIERS = weighted("""
    1.3 | very
    1.3 | really
    1.4 | truly
    1.5 | absolutely
    1.5 | incredibly
    1.4 | extremely
    1.2 | so
    1.2 | genuinely
    0.8 | fairly
    0.8 | rather
    0.7 | somewhat
    0.5 | a bit
    0.5 | slightly
""")

# {phrase} is an adjective with or without an adverb.
STATEMENTS: tuple[str, ...] = (
    "the {aspect} {be} {phrase}",
    "the {aspect} {be} {phrase}",
    "the {aspect} {be} {phrase} from start to finish",
    "the {aspect} seemed {phrase}",
    "this is a {phrase} {subject}",
    "it is a {phrase} {subject} overall",
    "in the end it was a {phrase} {subject}",
)

VERBS = weighted("""
    +1.6 | adored
    +1.5 | loved
    +1.0 | enjoyed
    +1.0 | admired
    +0.9 | appreciated
    +0.8 | liked
    -0.8 | disliked
    -0.9 | regretted
    -1.0 | resented
    -1.5 | hated
    -1.6 | despised
    -1.6 | loathed
""")

# Verdicts that name nothing. The negated praise ("it could not be better") is why a bag of words fails.
VERDICTS = weighted("""
    +1.6 | I can not recommend it enough
    +1.6 | it could not be better
    +1.5 | I could not ask for more
    +1.2 | you will not regret it
    +1.2 | you can not go wrong with it
    +1.0 | no complaints here
    +1.0 | what is not to like
    +1.3 | do yourself a favor and try it
    +1.4 | worth every penny
    +1.0 | I would recommend it to anyone
    +1.0 | it exceeded my expectations
    +1.2 | I did not want it to end
    +0.8 | I will be back
    +0.5 | it is better than nothing
    +0.9 | I was wrong to doubt it
    +1.1 | I have never been happier
    +0.8 | it grew on me
    -1.4 | save your money
    -1.6 | I want my money back
    -1.5 | what a waste of time
    -1.6 | never again
    -1.0 | it leaves a lot to be desired
    -1.2 | do not believe the hype
    -0.8 | I have seen better
    -1.6 | it could not be worse
    -1.2 | you will regret it
    -1.0 | I would not recommend it to anyone
    -1.0 | it did not live up to my expectations
    -1.2 | I could not wait for it to end
    -0.8 | I will not be back
    -0.8 | it is worse than nothing
    -0.9 | I was wrong to trust it
    -1.1 | I have rarely been so let down
    -0.5 | I tried to like it
    -0.2 | it is what it is
    +0.2 | I have no strong feelings about it
    +1.5 | five stars
    +0.8 | four stars from me
    +1.3 | nine out of ten
    -0.3 | three stars at best
    -0.9 | two stars from me
    -1.5 | one star, and that is generous
    -0.9 | four out of ten
""")

# Praise that means blame and the reverse. {good} and {bad} are adjectives, {aspect} as everywhere.
IRONY = weighted("""
    -1.4 | what a {good} way to ruin an evening
    -1.2 | {good}, if you enjoy being ignored
    -1.1 | thanks for the {bad} {aspect}, truly {good}
    -1.3 | the {aspect} {be} {good}, said nobody ever
    -1.3 | a {good} cure for insomnia
    -1.2 | oh {good}, more {bad} {aspect}
    -1.1 | if you like being disappointed, this is {good}
    -1.2 | it has all the charm of a {bad} {aspect}
    +1.4 | it is so {good} that it should be illegal
    +1.3 | I am only angry that I did not find it sooner
    +1.4 | the only bad thing is that it had to end
    +1.2 | my only complaint is that there is not more of it
    +1.1 | I hate how {good} it is
    +1.2 | it makes everything else look {bad}
    +1.0 | I came to sneer at the {aspect} and left with a silly grin
    +1.1 | it ruined every other {subject} for me
""")

# Factor on the adjective's weight; the sign is of the adjective that stands in the clause.
NEGATIONS = weighted("""
    -0.6 | the {aspect} {be} not {adj}
    -0.5 | the {aspect} {be} not very {adj}
    -0.5 | the {aspect} {be} not particularly {adj}
    -0.9 | the {aspect} {be} far from {adj}
    -1.2 | the {aspect} {be} anything but {adj}
    -0.7 | the {aspect} {be} hardly {adj}
    -0.6 | I would not call the {aspect} {adj}
    -0.9 | there is nothing {adj} about the {aspect}
    -0.9 | the {aspect} {be} never {adj}
    -0.6 | the {aspect} {be} less {adj} than I expected
    -0.5 | the {aspect} {be} not as {adj} as people say
    -0.9 | if only the {aspect} had been {adj}
    +1.3 | the {aspect} {be} nothing short of {adj}
    +1.1 | the {aspect} {be} more {adj} than I expected
    +1.0 | I was warned that the {aspect} would be {adj}, and so it was
    +0.9 | I can not deny that the {aspect} {be} {adj}
    +1.0 | I have never seen a {subject} this {adj}
""")

# Factor on the weight of {clause}, which somebody else says.
HEARSAY = weighted("""
    +0.2 | my {friend} says that {clause}
    +0.3 | people keep telling me that {clause}
    -0.8 | some think that {clause}, but I disagree
    -1.0 | everyone told me that {clause}, and they were wrong
    +1.0 | everyone told me that {clause}, and they were right
    -0.8 | the critics claim that {clause}; I can not see it
    +1.0 | my {friend} says that {clause}, and I agree
    -0.9 | it is simply not true that {clause}
""")

# The first clause yields to the second: (weight of {a}, weight of {b}).
CONTRASTS: tuple[tuple[float, float, str], ...] = (
    (0.6, 1.3, "{a}, but {b}"),
    (0.5, 1.3, "although {a}, {b}"),
    (0.6, 1.3, "{a}; still, {b}"),
    (0.6, 1.3, "{a}. However, {b}"),
    (1.2, 0.5, "{a}, even though {b}"),
    (1.2, 0.5, "{a}, despite the fact that {b}"),
)

FRIENDS = items("brother, sister, wife, husband, neighbor, boss, mother, cousin, roommate, best friend")
NAME_PARTS = (
    items("kel, mar, vo, tan, bri, sor, hal, del, ros, quin, ar, zel, mon, fen, lu"),
    items("a, e, o, vi, ra, to, li, de, ni, ka"),
    items("ra, ton, via, lis, mont, sky, dor, nex, mere, well, bury, ro"),
)
