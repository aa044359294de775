# syntax=docker/dockerfile:1
# docker build -t kernelsight . && docker run --rm kernelsight simulate --model llama-3.1-8b --gpu h100_sxm --request-rate 10
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir "build==1.3.0" && python -m build --wheel --outdir /dist

FROM python:3.12-slim
LABEL org.opencontainers.image.title="KernelSight" org.opencontainers.image.licenses="Apache-2.0"
COPY .ci/constraints.txt /tmp/constraints.txt
COPY --from=build /dist /tmp/dist
# the extras of a server and of pages; without a shell in between, so that signals reach the program
RUN for wheel in /tmp/dist/*.whl; do \
      pip install --no-cache-dir --constraint /tmp/constraints.txt "kernelsight[report,serve,mcp] @ file://$wheel"; \
    done \
    && rm -r /tmp/dist /tmp/constraints.txt \
    && useradd --create-home --uid 1000 kernelsight
USER 1000
WORKDIR /home/kernelsight
ENTRYPOINT ["kernelsight"]
CMD ["--help"]
