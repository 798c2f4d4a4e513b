"""The texts of the tiny model: the one that its vocabulary is trained on, and its chat template."""

TRAINING_TEXT = """\
A village below the dam shares one channel of water. Each field is owed a part of the flow, and the keeper of the gate
opens it field by field, so that nobody takes what another was promised. When a neighbour sleeps, the others may use
his water, for a channel that runs empty serves no one; when he wakes, his share is his again at once, and he is not
asked to pay for the hours that others enjoyed. A large farm with many hands may stand at the gate all day and ask for
more than the channel can carry. It receives its part, and it waits for the rest. The small garden that asks for a
single bucket is served almost before it has asked, because its turn is always near. This is what fairness means here:
not that everyone receives the same, but that everyone can count on what is due, whatever the others do. The keeper
writes every bucket into a book. Water that was poured is charged when it is poured, neither before nor after, and a
bucket that was spilled on the way is not charged twice. At the end of the season the book is read aloud, and the
numbers add up. The same rules hold for machines that read and write words for many people at the same time. Prompts
arrive in bursts, answers differ in length by a thousand times, and nobody knows beforehand how long an answer will
be. So the work is measured by what was really done: one unit for each word read, two units for each word written.
Those who were served least go next. Questions are answered in order, requests wait in line, tokens stream one after
another, and the service of each tenant is counted.
"""

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}system: call a tool as <tool_call>{name, arguments}</tool_call>\n"
    "{% for tool in tools %}tool: {{ tool['function'] | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
