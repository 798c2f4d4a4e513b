"""The HTTP interface: an API Gateway REST API that streams the answers of headgate-front.

A REST API, because no other AWS gateway streams for 15 minutes and into a VPC. headgate-front checks the tenant's key,
its limits and the request's shape; the gateway knows neither keys nor tenants.
"""

from __future__ import annotations

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from headgate.deployment.model import Deployment
from infra.checks import acknowledge
from infra.observability import log_group

_STREAM_MAX = Duration.minutes(15)
_REQUESTS_PER_S, _REQUESTS_BURST = 1000, 2000
"""Limits of the whole API against floods. The gate enforces the shares between tenants."""
_STAGE = "live"
_PAGES = ("health", "ready", "docs", "openapi.json")
"""What the front answers beside its API and the operator's page (functions/http_api/app.py)."""

_ACKNOWLEDGED = {
    "AwsSolutions-APIG2": "The app validates and answers in OpenAI's error shape, which a gateway model cannot.",
    "AwsSolutions-APIG3": "A web ACL is the account's choice and cost. The app limits body size, depth and rates.",
    "AwsSolutions-APIG4": "The app authenticates each tenant by its API key, as any OpenAI SDK sends it.",
    "AwsSolutions-COG4": "The app authenticates each tenant by its API key, not by a Cognito user pool.",
}


class Api(Construct):
    """The gateway. `front` is the function that answers its requests."""

    def __init__(self, scope: Construct, construct_id: str, *, front: lambda_.Function, deployment: Deployment) -> None:
        super().__init__(scope, construct_id)
        self._deployment = deployment
        self.rest_api = apigateway.RestApi(
            self,
            "Rest",
            rest_api_name=Stack.of(self).stack_name,
            endpoint_types=[apigateway.EndpointType.REGIONAL],  # streams may idle for 5 minutes; at an edge for 30 s
            cloud_watch_role=True,
            deploy_options=self._stage(),
        )
        integration = apigateway.LambdaIntegration(
            front, response_transfer_mode=apigateway.ResponseTransferMode.STREAM, timeout=_STREAM_MAX
        )
        root = self.rest_api.root
        for path in _PAGES:
            root.add_resource(path).add_method("GET", integration)
        page = root.add_resource("operator")
        page.add_method("GET", integration)
        for action in ("login", "logout"):
            page.add_resource(action).add_method("POST", integration)
        root.add_resource("v1").add_proxy(any_method=True, default_integration=integration)
        acknowledge(self.rest_api, _ACKNOWLEDGED)
        self._acknowledge_log_role()
        base_url = f"{self.rest_api.url}v1"
        CfnOutput(Stack.of(self), "OpenAiBaseUrl", value=base_url, description="base_url for any OpenAI SDK")

    def _stage(self) -> apigateway.StageOptions:
        return apigateway.StageOptions(
            stage_name=_STAGE,
            access_log_destination=apigateway.LogGroupLogDestination(log_group(self, "AccessLog", self._deployment)),
            access_log_format=_access_log_format(),
            logging_level=apigateway.MethodLoggingLevel.ERROR,
            data_trace_enabled=False,  # it would log prompts
            metrics_enabled=True,
            tracing_enabled=True,
            throttling_rate_limit=_REQUESTS_PER_S,
            throttling_burst_limit=_REQUESTS_BURST,
        )

    def _acknowledge_log_role(self) -> None:
        """Accept AWS's managed policy for the one role per account with which API Gateway writes its logs."""
        arn = "arn:<AWS::Partition>:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs"
        reason = "The policy that API Gateway documents for its account role."
        rule = f"AwsSolutions-IAM4[Policy::{arn}]"
        acknowledge(self.rest_api, {rule: reason})


def _access_log_format() -> apigateway.AccessLogFormat:
    """Return a format without caller and address. The functions' own logs name the tenant."""
    return apigateway.AccessLogFormat.json_with_standard_fields(
        caller=False,
        http_method=True,
        ip=False,
        protocol=True,
        request_time=True,
        resource_path=True,
        response_length=True,
        status=True,
        user=False,
    )
