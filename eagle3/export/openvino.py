"""What OpenVINO's own converter needs to make a draft's IR, and what must be set in the IR.

OpenVINO GenAI loads neither safetensors nor GGUF but an IR, which `optimum-cli` makes in an
environment of its own (it wants an older transformers). So this writes the official layout under an
architecture that the converter knows, the target's tokenizer beside it, and `openvino.json`: the
layers as OpenVINO counts them, and the commands. The layers are always set, for OpenVINO's default
is one layer later than every other engine's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from eagle3.export import official
from eagle3.export.layers import ENGINES
from eagle3.export.official import Stored

TOKENIZER_FILES = (
    "tokenizer.json tokenizer_config.json special_tokens_map.json tokenizer.model vocab.json "
    "merges.txt added_tokens.json chat_template.jinja"
).split()

NOTE = "openvino.json"

CONVERT = (
    "optimum-cli export openvino --model {folder} --task text-generation-with-past "
    "--weight-format fp32 --trust-remote-code {folder}-ir"
)
"""optimum-intel 2.2.0 converts EAGLE-3 architectures only with this flag; the directory has no code
that it could run."""

SET_LAYERS = (
    "import openvino as ov\n"
    "model = ov.Core().read_model('{folder}-ir/openvino_model.xml')\n"
    "model.set_rt_info({layers}, ['hidden_layers_list'])\n"
    "ov.save_model(model, '{folder}-ir/with-layers.xml', compress_to_fp16=False)\n"
)


def write(
    stored: Stored, folder: Path, num_target_layers: int, dtype: torch.dtype, target: Path
) -> None:
    """Write the directory that `optimum-cli` converts.

    Args:
        target: an HF directory; its tokenizer files are copied.
    """
    official.write(stored, folder, num_target_layers, dtype)
    for name in TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copy(target / name, folder / name)
    reading = ENGINES["openvino"]
    layers = [k - reading.shift for k in stored.config.capture_layers]
    note = {
        "hidden_layers_list": layers,
        "convert": CONVERT.format(folder=folder),
        "then": SET_LAYERS.format(folder=folder, layers=layers).splitlines(),
    }
    (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n")
