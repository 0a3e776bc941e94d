# SPDX-License-Identifier: Apache-2.0
"""Small stories and running text, made from a grammar: a beginning, a problem, a helper, an end."""

import words

BEGIN = (
    "Once upon a time there was {a_hero} named {name}.",
    "There once was {a_hero} called {name}.",
    "{name} was {a_hero} who lived near the {place}.",
    "Long ago, near the {place}, lived {a_hero} named {name}.",
)
WISH = (
    "Every morning {name} walked to the {place} with {a_thing}.",
    "{name} loved {thing_the} more than anything else.",
    "{name} had {a_thing} that had belonged to an old {job}.",
    "One day {name} found {a_thing} beside the {place}.",
)
TROUBLE = (
    "But one {weather} night {thing_the} was gone.",
    "Then a {weather} wind carried {thing_the} far away.",
    "But {thing_the} fell into the {place2} and {name} could not reach it.",
    "One evening {name} lost {thing_the} on the way home.",
)
SEARCH = (
    "{name} looked under the {place2} and behind the {place}, but found nothing.",
    "{name} asked everyone in the village, but nobody had seen it.",
    "{name} sat down by the {place2} and felt very sad.",
)
HELP = (
    "Then {a_friend} came by and offered to help.",
    'A {friend} said, "I know where it is. Follow me."',
    "At last {a_friend} brought {thing_the} back.",
)
FOUND = (
    "Together they found {thing_the} next to the {place2}.",
    "They searched until sunrise, and there was {thing_the}, as {adj} as ever.",
    "Soon {thing_the} was safe again.",
)
LESSON = (
    "From that day on, {name} and the {friend} were friends.",
    "{name} thanked the {friend} and shared some {food} with everyone.",
    "{name} learned that a friend is worth more than {a_thing}.",
)
WEATHERS = ("stormy", "cold", "windy", "rainy", "dark", "foggy")
PLACES = (
    "river",
    "hill",
    "old mill",
    "lake",
    "forest",
    "harbour",
    "bridge",
    "garden",
    "tower",
    "market",
)
FOODS = ("bread", "cheese", "soup", "cake", "apples", "honey")

FILLER = (
    "The {adj} {job} {verb} the {noun} near the {place}.",
    "In {city}, {person} {verb} {a_noun} and went home.",
    "A {animal} sat by the {place} and watched the {noun}.",
    "Nobody in {city} had seen such a {adj} {noun} before.",
    "{person} gave the {noun} to the {job} and asked for {a_noun}.",
    "The {place} was {adj} that day, and the {animal} was {adj2}.",
    "On the way to {city}, {person} met a {adj} {animal}.",
    "The {noun} in the window was {colour}, and the {noun2} beside it was {colour2}.",
    "It took {person} {number} days to walk from the {place} to {city}.",
    "There were {number} {animal} tracks behind the {noun}.",
)


def story(rng, hero=None, thing=None):
    """Returns a story of six or seven sentences that ends with 'The end.'"""
    hero = hero or rng.choice(words.ANIMALS)
    thing = thing or rng.choice(words.NOUNS)
    friend = rng.choice([a for a in words.ANIMALS if a != hero])
    place, place2 = rng.sample(PLACES, 2)
    adj = rng.choice(words.ADJECTIVES)
    fill = {
        "a_hero": words.article(f"{rng.choice(words.ADJECTIVES)} {hero}"),
        "name": rng.choice(words.NAMES),
        "thing_the": "the " + thing,
        "a_thing": words.article(thing),
        "a_friend": words.article(friend),
        "friend": friend,
        "place": place,
        "place2": place2,
        "adj": adj,
        "job": rng.choice(words.JOBS),
        "weather": rng.choice(WEATHERS),
        "food": rng.choice(FOODS),
    }
    parts = [BEGIN, WISH, TROUBLE, SEARCH, HELP, FOUND, LESSON]
    if rng.random() < 0.4:
        parts.remove(SEARCH)
    lines = [rng.choice(part).format(**fill) for part in parts]
    return " ".join(lines) + " The end."


def filler(rng):
    """One sentence of filler text that no question is about."""
    noun, noun2 = rng.sample(words.NOUNS, 2)
    adj, adj2 = rng.sample(words.ADJECTIVES, 2)
    colour, colour2 = rng.sample(words.COLOURS, 2)
    return rng.choice(FILLER).format(
        adj=adj,
        adj2=adj2,
        noun=noun,
        noun2=noun2,
        a_noun=words.article(noun2),
        colour=colour,
        colour2=colour2,
        job=rng.choice(words.JOBS),
        verb=rng.choice(words.VERBS),
        place=rng.choice(PLACES),
        city=rng.choice(words.CITIES),
        person=rng.choice(words.NAMES),
        animal=rng.choice(words.ANIMALS),
        number=rng.randint(2, 99),
    )


def paragraph(rng, n):
    return " ".join(filler(rng) for _ in range(n))
