# SPDX-License-Identifier: Apache-2.0
"""Two texts as one prompt, and tokenizers in the form in which encoders have them: the ids and types of Hugging Face's `tokenizers`."""
import json
import subprocess

import pytest

import golden

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

WORDS = ("the quick brown fox jumps over lazy dogs while ranking models read every query with its passage what is a neural network "
         "it returns vectors und für die ganze Straße naïve café 2024 prices rose 3.5 % don't we'll").split()
CORPUS = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))] * 3
TEXTS = ["What is a neural network?", "A network that learns: naïve, café!", "", " two  spaces\tand\nlines ", "die Straße 2024 (3.5 %)",
         "don't we'll", "汉字 mixed with words", "[SEP] in a text </s>", "unbelievable" * 12]
PAIRS = [(a, b) for a in TEXTS for b in TEXTS[:4]]


def bert(lowercase, processor):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(prefix="##")
    tok.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=180, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    if processor == "bert":
        tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    elif processor == "template":
        tok.post_processor = processors.TemplateProcessing(single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
                                                           special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tok


def xlm_roberta():
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="always")])
    tok.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    tok.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=180, special_tokens=specials, unk_token="<unk>"))
    tok.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
                                                       special_tokens=[("<s>", 0), ("</s>", 2)])
    return tok


def byte_level(normalizer, processor, specials):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=380, special_tokens=specials,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.post_processor = processor
    return tok


def modernbert():
    specials = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    processor = processors.TemplateProcessing(single="[CLS] $A:0 [SEP]", pair="[CLS] $A:0 [SEP] $B:1 [SEP]:1",
                                              special_tokens=[("[CLS]", 0), ("[SEP]", 2)])
    return byte_level(normalizers.NFC(), processor, specials)


FORMS = {
    "bert uncased": lambda: bert(True, "bert"),
    "bert cased": lambda: bert(False, "template"),
    "bert without a processor": lambda: bert(True, None),
    "xlm-roberta": xlm_roberta,
    "roberta": lambda: byte_level(None, processors.RobertaProcessing(("</s>", 2), ("<s>", 0)), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    "modernbert": modernbert,
}


def ours(path, lines):
    done = subprocess.run([golden.SLUICE, "tokenize", str(path)], input="".join(json.dumps(x) + "\n" for x in lines),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", FORMS)
def test_ids_and_types(name, tmp_path):
    tok = FORMS[name]()
    tok.save(str(tmp_path / "tokenizer.json"))
    single = ours(tmp_path, [{"text": t} for t in TEXTS])
    assert [a["ids"] for a in single] == [tok.encode(t).ids for t in TEXTS]
    pairs = [(a, b) for a, b in PAIRS if a or tok.post_processor]  # otherwise the types of all tokens would be 1
    for (a, b), answer in zip(pairs, ours(tmp_path, [{"text": a, "pair": b} for a, b in pairs])):
        want = tok.encode(a, b)
        assert answer["ids"] == want.ids, (a, b)
        second = want.type_ids.index(1) if 1 in want.type_ids else 0
        assert answer["second"] == second and want.type_ids == [int(0 < second <= i) for i in range(len(want.ids))], (a, b)


@pytest.mark.parametrize("pair", ["[CLS] $B [SEP] $A [SEP]", "[CLS]:0 $A:1 [SEP]:0 $B:0 [SEP]:0", "[CLS] $A:0 [SEP]:0 $B:0 [SEP]:1"])
def test_other_templates_are_refused(pair, tmp_path):
    tok = bert(True, None)
    tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tok.save(str(tmp_path / "tokenizer.json"))
    alone, both = ours(tmp_path, [{"text": "a dog"}, {"text": "a dog", "pair": "the fox"}])
    assert alone["ids"] == tok.encode("a dog").ids
    assert "template for pairs" in both["error"]
