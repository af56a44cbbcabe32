"""Check that a protocol has a meaning for the form of the data: images, signals or tokens."""

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.protocols.scenario import Attack, Certificate, Corruption, Ood, Scenario, Shift


def require_form(data: Dataset, protocol: Scenario) -> None:
    """Refuse attacks in another space, corruptions of another form of data, and shifts of what is no image."""
    form = data.form
    if isinstance(protocol, Attack) and protocol.space not in form.spaces:
        known = " or ".join(f"space = '{space}'" for space in form.spaces)
        raise BadInputError(
            f"protocol '{protocol.title}' attacks in {protocol.space} space, but data '{data.name}' are {form.name}",
            expected=f"an attack with {known}" if known else "no attack: small changes of a word have no meaning",
            fix="see: rbk list protocols",
        )
    if isinstance(protocol, Corruption) and protocol.profile not in form.profiles:
        raise BadInputError(
            f"protocol '{protocol.title}' has the corruptions '{protocol.profile}', but data '{data.name}' are "
            f"{form.name}",
            expected=f"profile = {' or '.join(repr(profile) for profile in form.profiles)}",
            fix="see: rbk list protocols",
        )
    if isinstance(protocol, Shift | Ood | Certificate) and not form.box:
        raise BadInputError(f"protocol '{protocol.title}' for {form.name}", expected="images")
