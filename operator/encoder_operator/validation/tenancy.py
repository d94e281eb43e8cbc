"""What an administrator allows the authors of EncoderModels to set.

Without these limits, edit rights on EncoderModels include running any image, with any further container, behind a gate that the
author can open. `docs/security.md` describes what remains with all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from encoder_operator.api.v1alpha1 import Spec
from encoder_operator.manager.settings import Settings
from encoder_operator.status.reasons import Reason
from encoder_operator.validation.errors import NotAccepted

# from the weakest to the strongest
PARITY_MODES = ("Disabled", "Warn", "Enforce")


def check(spec: Spec, settings: Settings) -> None:
    """Check that a spec sets only what the administrator allows.

    Raises:
        NotAccepted: The user must change the spec, or an administrator the operator's settings.
    """
    found = next(_violations(spec, settings), None)
    if found is not None:
        field, setting = found
        raise NotAccepted(Reason.NOT_PERMITTED, f"{field}: this operator does not allow it (setting {setting})")


def effective_mode(mode: str, settings: Settings) -> str:
    """Return the parity mode that applies to an EncoderModel that sets ``mode``, which may not be allowed or not exist."""
    known = mode if mode in PARITY_MODES else "Enforce"
    return max(known, settings.weakest_parity_mode, key=PARITY_MODES.index)


def _violations(spec: Spec, settings: Settings) -> Iterator[tuple[str, str]]:
    if spec.image is not None and not settings.allow_custom_images:
        yield "spec.image", "tenancy.allowCustomImages"
    if spec.serving.pod_template is not None and not settings.allow_pod_template:
        yield "spec.serving.podTemplate", "tenancy.allowPodTemplate"
    account = spec.prepare.service_account_name
    if account is not None and account not in settings.prep_service_accounts:
        yield f"spec.prepare.serviceAccountName {account}", "tenancy.prepServiceAccounts"
    if spec.parity.thresholds and not settings.allow_threshold_overrides:
        yield "spec.parity.thresholds", "tenancy.allowThresholdOverrides"
    if effective_mode(spec.parity.mode, settings) != spec.parity.mode:
        yield f"spec.parity.mode {spec.parity.mode}", f"tenancy.weakestParityMode: {settings.weakest_parity_mode}"
