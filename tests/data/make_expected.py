"""Cut the trainer's own record of a drafter down to what the tests compare with.

    python tests/data/make_expected.py FIXTURES_FOLDER

FIXTURES_FOLDER holds one folder per drafter with `sample.safetensors`: the tokens, the target's
hidden states and the logits that speculators' own model computed for steps 0 to 2 (fp32, weights as
saved). The states are the same for all drafters of one target, so they are kept once, in
`samples/tiny.safetensors`; `expected/NAME.safetensors` keeps the choices of every position and, of
the first sequence, the logits: all rows of step 0, every fourth row of steps 1 and 2.
"""

import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
STATES = ("input_ids", "loss_mask", "hidden_states", "target_greedy_next")


def main(fixtures: Path) -> None:
    for drafter in sorted(p.name for p in (HERE / "drafters").iterdir()):
        record = load_file(fixtures / drafter / "sample.safetensors")
        if drafter == "a_plain":
            states = {k: v for k, v in record.items() if k.split(".", 1)[1] in STATES}
            points = " ".join(str(p) for p in range(record["s0.hidden_states"].shape[0]))
            save_file(
                states,
                HERE / "samples" / "tiny.safetensors",
                metadata={"target": "target-tiny", "capture_points": points},
            )
        kept = {k: v for k, v in record.items() if "draft_argmax" in k and "target_id" not in k}
        for step in range(3):
            logits = record[f"s0.draft_logits_step{step}"]
            kept[f"s0.draft_logits_step{step}"] = (logits if step == 0 else logits[::4]).contiguous()
        save_file(kept, HERE / "expected" / f"{drafter}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
