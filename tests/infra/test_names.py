"""Several stacks fit into one account: every physical name begins with the name of its stack."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.infra.conftest import Synthesise
from tests.infra.templates import Template, functions, template_in

NAMED = frozenset(
    {
        *("FunctionName", "TableName", "QueueName", "TopicName", "AlarmName", "DashboardName", "LogGroupName"),
        *(
            "RoleName",
            "PolicyName",
            "ManagedPolicyName",
            "Name",
            "ServiceName",
            "ClusterName",
            "SecretName",
            "RuleName",
            "LayerName",
            "BucketName",
            "InstanceProfileName",
        ),
    }
)
"""Properties that give a resource a physical name, if they are no reference."""
LOCAL = frozenset({"AWS::IAM::Policy", "AWS::Lambda::Alias"})
"""The names of an inline policy and of an alias are unique in their role and function only."""


def physical_names(template: Template) -> Iterator[str]:
    for resource in template["Resources"].values():
        for key, value in resource.get("Properties", {}).items():
            if key in NAMED and isinstance(value, str) and resource["Type"] not in LOCAL:
                yield value


def own_namespaces(template: Template) -> dict[str, set[str]]:
    """The namespaces of headgate's own metrics: where processes write them, and where alarms and dashboard look."""
    text = json.dumps(template["Resources"])
    written = re.findall(r'"POWERTOOLS_METRICS_NAMESPACE": "([^"]*)"', text)
    written += re.findall(r'"Name": "POWERTOOLS_METRICS_NAMESPACE", "Value": "([^"]*)"', text)
    watched = set(re.findall(r'"Namespace": "([^"]*)"', text))
    return {
        "variable": set(written),
        "alarm": {name for name in watched if not name.startswith("AWS/")},
        "dashboard": set(re.findall(r"SEARCH\('\{([^,]+),", text)),
    }


def test_the_outputs_have_the_names_of_the_documentation(template: Template, fleet_template: Template) -> None:
    documented = {"OpenAiBaseUrl", "TableName", "OperatorShell", "OperatorToken", "AlarmTopic", "WorkerGroup", "VpcId"}
    documented |= {"InvokerPolicy", "AdministratorPolicy", "OperatorPolicy"}
    assert set(template["Outputs"]) == documented | {"WorkersDefault"}
    assert set(fleet_template["Outputs"]) == documented | {"WorkersDefault"}


def test_the_default_stack_is_the_one_of_the_documentation(template: Template) -> None:
    assert "headgate-invoke" in functions(template)
    names = list(physical_names(template))
    assert len(names) >= 6
    assert all(name.startswith("headgate") for name in names), names


def test_a_second_stack_shares_no_name_with_the_first(template: Template, synthesise: Synthesise) -> None:
    second = template_in(synthesise(name="staging"))
    names = list(physical_names(second))
    assert all(name.startswith("staging") for name in names), names
    assert not set(names) & set(physical_names(template))


def test_a_second_stack_has_its_metrics_in_a_namespace_of_its_own(template: Template, synthesise: Synthesise) -> None:
    second = template_in(synthesise(name="staging"))
    namespaces = own_namespaces(template)
    assert {kind: len(found) for kind, found in namespaces.items()} == {"variable": 1, "alarm": 1, "dashboard": 1}
    assert namespaces == {kind: {"headgate"} for kind in namespaces}
    assert own_namespaces(second) == {kind: {"staging"} for kind in namespaces}
