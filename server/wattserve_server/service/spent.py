"""What the joules of a generation were spent on, for both protocols. Pure."""

from __future__ import annotations

from typing import NamedTuple

from wattserve_server.energy.receipt import Receipt, Role, State


class Spent(NamedTuple):
    prompt_tokens: int  # that were read
    output_tokens: int  # that were chosen
    recomputed_tokens: int
    energies: dict[str, int | float | None]  # by their names on the wire; None while not known


def spent_on(receipt: Receipt) -> Spent:
    """Of one that has lines with roles. All its energies but the overhead are of `Receipt.energy_uj`."""
    tokens, chosen = dict.fromkeys(Role, 0), 0
    for line in receipt.lines:
        if line.role is not None:
            tokens[line.role] += line.tokens
            chosen += line.chosen
    whole = receipt.whole
    energy_uj = None if whole.state is State.UNKNOWN else whole.energy_uj
    prompt_uj, output_uj = (
        None if energy_uj is None else _of_role(receipt, role) for role in (Role.PROMPT, Role.OUTPUT)
    )
    energies: dict[str, int | float | None] = {
        "prompt_energy_uj": prompt_uj,
        "output_energy_uj": output_uj,
        "energy_per_output_token_uj": _by(energy_uj, chosen),
        "energy_per_total_token_uj": _by(energy_uj, tokens[Role.PROMPT] + chosen),
        "overhead_energy_uj": receipt.overhead_uj,
    }
    return Spent(tokens[Role.PROMPT], chosen, tokens[Role.RECOMPUTED], energies)


def _of_role(receipt: Receipt, role: Role) -> int | None:
    total_uj = 0
    for line in receipt.of_role(role):
        if (line_uj := line.energy_uj) is None:
            return None
        total_uj += line_uj
    return total_uj


def _by(energy_uj: int | None, tokens: int) -> float | None:
    return None if energy_uj is None or not tokens else energy_uj / tokens
