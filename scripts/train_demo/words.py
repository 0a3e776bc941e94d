# SPDX-License-Identifier: Apache-2.0
"""The words from which the corpus is made, and random strings of several kinds."""

import unicodedata

NOUNS = """acorn anchor apple apron arrow basket bell berry bicycle blanket boat book bottle
bowl bridge broom brush bucket button cabin cake candle canoe carpet castle chair cheese cherry
clock cloud coat coin comb compass cookie cradle crown cup curtain desk dish door dress drum
engine envelope feather fence field flag flower flute fork fountain garden gate glass glove goat
guitar hammer harbour harp hat helmet hill horn house island jacket jar kettle key kite knife
ladder lake lamp lantern leaf lemon letter lock mango map market mask medal melon mill mirror
mountain mug nail needle nest net notebook oar ocean onion orange orchard oven paddle paint pan
paper peach pear pebble pencil pepper piano picture pillow pipe plate plum pocket pond potato
puzzle quilt radio raft rake ribbon ring river road robe rocket roof rope rose ruler saddle sail
salt sand scarf school seed shelf shell ship shirt shoe silver sled soap sock spoon stamp star
stone stool storm stove straw street sugar sword table tent thread ticket tile torch tower toy
trail train tree trumpet tunnel umbrella valley vase village violin wagon wall watch wheel whistle
window wood wool yarn""".split()

ANIMALS = """fox bear cat dog owl wolf hare duck frog goose horse crow deer mouse otter beaver
badger sparrow turtle rabbit squirrel hedgehog heron lizard monkey parrot penguin tiger lion zebra
whale dolphin eagle falcon donkey sheep snail spider swan camel""".split()

# Those that take "a" and not "an".
PETS = [animal for animal in ANIMALS if animal[0] not in "aeiou"]

NAMES = """Anna Ben Clara David Emma Felix Greta Hugo Irene Jonas Karin Leo Maria Nils Olga
Paul Quentin Rosa Simon Tilda Ulrich Vera Walter Xenia Yara Zoe Adam Bella Carlos Diana Elias
Fiona Gustav Helena Ivan Julia Kevin Laura Martin Nina Oscar Petra Rafael Sofia Thomas Ursula
Victor Wanda Yusuf Zara Alice Bruno Cecilia Dmitri Eva Frank Gloria Henry Ingrid Jack Kate Lucas
Mona Noah Olivia Peter Ruth Sam Tara Tom Bob John Mary Jane James Sarah Lily Max Mia Omar Priya
Chen Yuki Amir Fatima Kofi Amara Mateo Lucia Hana Ravi""".split()

CITIES = """Oslo Paris Rome Berlin Madrid Lisbon Vienna Prague Dublin London Athens Warsaw
Helsinki Stockholm Copenhagen Amsterdam Brussels Budapest Zurich Geneva Munich Hamburg Milan
Naples Venice Porto Seville Barcelona Lyon Bergen Tokyo Kyoto Osaka Seoul Beijing Delhi Mumbai
Cairo Lagos Nairobi Toronto Boston Chicago Denver Seattle Austin Miami Lima Quito Bogota Santiago
Sydney Perth Auckland Tallinn Riga Vilnius Krakow Istanbul Montreal""".split()

COLOURS = """red green blue yellow orange purple pink brown black white grey silver golden
violet crimson""".split()

ADJECTIVES = """young small tall quiet brave clever gentle happy hungry lazy lucky proud quick shy
silly strong tired warm wild bright dark cold soft heavy light round narrow wide deep broken clean
dusty full hidden lost rusty shiny strange plain""".split()

JOBS = """baker teacher doctor farmer painter sailor writer pilot singer tailor carpenter
gardener plumber nurse librarian fisher potter driver cook weaver""".split()

VERBS = """found carried painted repaired borrowed opened cleaned watched counted washed
moved dropped kept lifted noticed""".split()

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Ireland": "Dublin",
    "England": "London",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Hungary": "Budapest",
    "Belgium": "Brussels",
    "Estonia": "Tallinn",
    "Latvia": "Riga",
    "Lithuania": "Vilnius",
    "Japan": "Tokyo",
    "South Korea": "Seoul",
    "China": "Beijing",
    "India": "Delhi",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Ecuador": "Quito",
    "Colombia": "Bogota",
    "Chile": "Santiago",
    "Canada": "Ottawa",
    "Australia": "Canberra",
    "the Netherlands": "Amsterdam",
    "the United States": "Washington",
    "Brazil": "Brasilia",
}

ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl pr sk sl st tr th sh ch".split()
VOWELS = "a e i o u ai ea ee io ou".split()
CODAS = ["", "", "", "l", "n", "r", "s", "t", "m", "nd", "rk", "st", "x"]

# Function words; copying must work for them, too.
COMMON = """the a an and or but if then this that these those is are was were be been being am
do does did done have has had having will would can could should may might must shall not no yes
it its he she they we you I me him her them us my your his our their who whom whose which what
when where why how all any both each few more most other some such only own same so than too very
just also again once here there now always never often sometimes still yet about above after
against along among around as at before behind below beside between by down during for from in
into like near of off on onto out over past since through to toward under until up upon with
within without test testing example please hello world people person time year day week month hour
minute work life hand part place case point thing fact idea word line number group problem
question answer state system program computer language science music art money power water fire
air food bread milk tea coffee meat fish rice house home room street town country nation war peace
law love hate fear hope dream sleep eat drink walk run jump sit stand speak talk say tell ask
think know learn teach read write draw sing play win lose buy sell give take make break build open
close start stop begin end go come leave stay bring send show see hear feel touch smell taste want
need try help use find look turn move change grow fall rise good bad big little new high low long
short early late fast slow easy hard hot nice great free true false right wrong left first last
next many much Python Java Linux Hamlet Einstein Shakespeare Google OpenAI Monday Friday January
December English French German Spanish Chinese President Internet quantum physics history poem
haiku essay recipe code function weather news""".split()

# Some characters of each script, drawn more often than the rest of Unicode.
UNICODE = (
    "àâäáãåæçéèêëíìîïñóòôöõøúùûüýßÀÉÈÖÜÄÅÆØÇÑ"
    "αβγδεζηθικλμνξοπρστυφχψω"
    "абвгдежзийклмнопрстуфхцчшщыэюя"
    "你好世界中文水火山木日月人大小天地风雨花鸟"
    "あいうえおかきくけこさしすせそ"
    "안녕하세요감사합니다"
    "אבגדהוזחט"
    "ابتثجحخد"
    "😀😂🚀🌍🎉🐱🐶🌲🔥⭐✅❌→←↑↓€£¥°±×÷≤≥≠∞"
)

# Ranges from which any assigned letter, digit or symbol may come: they teach the byte tokens.
RANGES = (
    (0x00A1, 0x017F),
    (0x0370, 0x03FF),
    (0x0400, 0x04FF),
    (0x05D0, 0x05EA),
    (0x0621, 0x064A),
    (0x0905, 0x0939),
    (0x0E01, 0x0E2E),
    (0x1E00, 0x1EFF),
    (0x2010, 0x2027),
    (0x20A0, 0x20BF),
    (0x2190, 0x22FF),
    (0x2500, 0x27BF),
    (0x3041, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0x1F300, 0x1FAFF),
    (0x20000, 0x2A6DF),
)

LOWER = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
PUNCTUATION = "!#$%&()*+,-./:;=?@[]^_{}~"


def made_up(rng, syllables=0):
    """A word that probably exists nowhere, of two or three syllables."""
    n = syllables or rng.choice((2, 2, 3))
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(n))


def digits(rng, n):
    return "".join(rng.choice(DIGITS) for _ in range(n))


def code(rng):
    """A string with no meaning, such as a part number."""
    kind = rng.randrange(5)
    if kind == 0:
        return "".join(rng.choice(LOWER + DIGITS) for _ in range(rng.randint(4, 10)))
    if kind == 1:
        return (
            "".join(rng.choice(LOWER.upper()) for _ in range(rng.randint(2, 4)))
            + "-"
            + digits(rng, 4)
        )
    if kind == 2:
        return digits(rng, rng.randint(3, 9))
    if kind == 3:
        return made_up(rng) + "_" + made_up(rng)
    return rng.choice(NOUNS) + "-" + digits(rng, 3)


def any_letter(rng):
    """Any visible character of the ranges."""
    while True:
        c = chr(rng.randint(*rng.choice(RANGES)))
        if unicodedata.category(c)[0] in "LNPS":
            return c


def unicode_text(rng):
    n, kind = rng.randint(1, 8), rng.random()
    if kind < 0.3:
        start = rng.randrange(len(UNICODE) - 8)
        return UNICODE[start : start + n]
    if kind < 0.5:
        return "".join(
            rng.choice(UNICODE) + (" " if rng.random() < 0.2 else "") for _ in range(n)
        ).strip()
    if kind < 0.75:
        return "".join(any_letter(rng) for _ in range(n))
    # A word with a foreign letter or two in it.
    word = list(rng.choice(COMMON + NOUNS))
    for _ in range(rng.randint(1, 2)):
        word.insert(rng.randint(0, len(word)), any_letter(rng))
    return "".join(word)


def any_word(rng):
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(COMMON)
    if kind < 0.75:
        return rng.choice(NOUNS + ADJECTIVES + ANIMALS + NAMES + CITIES + JOBS + VERBS)
    return made_up(rng)


def sentence(rng, n):
    """n words in random order, with occasional capitals and punctuation."""
    text = [any_word(rng) for _ in range(n)]
    if rng.random() < 0.5:
        text[0] = text[0].capitalize()
    for i in range(n - 1):
        if rng.random() < 0.08:
            text[i] += rng.choice(",;:.!?")
    return " ".join(text) + rng.choice(("", ".", "!", "?"))


def place_name(rng):
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(CITIES)
    if kind < 0.75:
        return made_up(rng).capitalize()
    if kind < 0.9:
        return (
            rng.choice(("San", "New", "Port", "Saint", "Los", "El", "Fort"))
            + " "
            + any_word(rng).capitalize()
        )
    return f"{rng.choice(CITIES)}, {rng.choice(sorted(CAPITALS))}"


def person(rng):
    return rng.choice(NAMES) if rng.random() < 0.7 else made_up(rng).capitalize()


def distinct(rng, n, make):
    """n different values of make(rng); make must be able to give that many."""
    values = {}
    while len(values) < n:
        values[make(rng)] = None
    return list(values)


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word
