# `aleator serve` in a small image, as an ordinary user:
#
#   docker build -t aleator .
#   docker run -p 8000:8000 -e ALEATOR_TOKEN=... -v ./gallery:/data:ro aleator serve /data/gallery --host 0.0.0.0
#
# docs/guides/serving.md says more. `make wheel` runs the same steps without Docker.

FROM python:3.11-slim AS build
# Builds of torch without CUDA. For a server on a GPU pass --build-arg TORCH_INDEX=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=postgres
WORKDIR /build
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
COPY deploy/install.sh deploy/install.sh
RUN pip wheel --quiet --no-cache-dir --no-deps --wheel-dir dist .
RUN TORCH_INDEX="$TORCH_INDEX" deploy/install.sh /opt/aleator constraints.txt "$(ls dist/*.whl)" "$EXTRAS"

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 aleator
COPY --from=build /opt/aleator /opt/aleator
ENV PATH=/opt/aleator/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp
USER aleator
WORKDIR /home/aleator
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/api/health', timeout=4)"]
ENTRYPOINT ["aleator"]
CMD ["serve", "--help"]
