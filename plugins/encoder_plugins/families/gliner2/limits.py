"""The limits of requests that extract by a schema. Standard library only: declarations use them."""

from encoder_plugins.plugin import REQUEST_LIMITS, TEXT_LIMITS, Limit

LIMITS = (
    *REQUEST_LIMITS,
    *TEXT_LIMITS,
    Limit(
        name="tasks", default=64, description="Tasks of one schema: structures, relations, classifications, entities."
    ),
    Limit(
        name="fields",
        default=256,
        description="Entity types, labels of their attributes, fields of structures, and two for each relation, in one schema.",
    ),
    Limit(name="labels", default=1_000, description="Labels of all classifications of one schema."),
    Limit(name="choices", default=256, description="Choices of all fields of one schema."),
    Limit(name="patterns", default=64, description="Regular expressions of all validators of one schema."),
    Limit(name="pattern_characters", default=1_000, description="Characters of one regular expression."),
    Limit(name="label_characters", default=256, description="Characters of one name, label or choice."),
    Limit(
        name="description_characters", default=2_000, description="Characters of one description, prompt or example."
    ),
    Limit(
        name="prompts",
        default=1_024,
        description="Prompts that one request may become: one for each text, or for each chunk of one.",
    ),
    Limit(name="prompt_tokens", default=1_048_576, description="Tokens of all prompts of one request."),
    Limit(
        name="candidates",
        default=8 * 1024 * 1024,
        description="Words times span widths times fields, those of structures and relations 19 times, of a request with a threshold"
        " below 0.1, where almost any of them can be a candidate; 28 bytes each.",
    ),
    Limit(name="values", default=100_000, description="Entities, relations, labels and field values in one answer."),
)
