# The image of a front and its gate process on Fargate: Python and the bundle (infra/bundle.py), which has everything
# installed for arm64 already. The build context is the bundle.
FROM public.ecr.aws/docker/library/python:3.14-slim
RUN useradd --uid 10001 --no-create-home headgate
COPY . /opt/headgate
ENV PYTHONPATH=/opt/headgate PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/headgate
USER headgate
VOLUME /tmp
