"""The first run on a B200, as one command: stages from harmless to hard, each in a process of its own, and one report.

    python -m cute_fa4 check --device cuda --report first_run.json
    python -m cute_fa4 check --device cpu --report dry_run.json        the same command on the emulator

stage.py         what a stage is, and what it is given
basics.py        device, one copy, the smallest launch, every head dim
contracts.py     what the documents promise of pairs, clusters, copies, products and launches, one small launch each
endurance.py     the same launch many times, claims, packed sequences, every block once
company.py       streams, graphs, another kernel on the same SMs
probes.py        the small kernels that these stages launch; cycles.py: that of the next one
figures.py       cycles of single instructions, claims by class, bench
assumptions.py   what the documents assume, and what the measured figures say of it
runner.py        processes and their watchdog
report.py        the file: JSON that begins with lines for people

It stops at the first stage that fails, hangs or crashes, and says which. On the emulator the stages that measure are
left out: its time is no GPU's.
"""
