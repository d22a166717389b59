"""Serves in SGLang what its own EAGLE-3 draft class cannot compute. SGLang finds it by an environment variable:

    pip install eagle3-convert        # in SGLang's environment; nothing else of it is imported there
    SGLANG_EXTERNAL_MODEL_PACKAGE=converter.sglang_plugin python -m sglang.launch_server ...

SGLang imports every module in here (models/registry.py @ 0.5.6 to 0.5.23) and registers what it finds as `EntryClass`,
under the class's own name: a name of its own, since what fails to import is only a warning in SGLang's log, and the
stock class would then serve the drafter in silence. Which drafters are written for it, and what it computes, is data:
`plugin` in mappings/engines/sglang.yaml.
"""
