# An image with a static binary and the sample rules: no shell, no packages, no other user.
#
#   docker build --tag weir .
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --provenance=mode=max \
#       --tag registry.example.com/weir:0.1.0 --push .
#
# Other platforms than the builder's are cross-compiled, so no emulation is needed.

# A tag instead of a digest, so that a rebuild includes Debian's fixes of the C library, the only part of this image that
# ends up in the result. For a reproducible build, use `--build-arg RUST_IMAGE=docker.io/library/rust@sha256:...`.
ARG RUST_IMAGE=docker.io/library/rust:1.95-slim-bookworm

FROM --platform=${BUILDPLATFORM} ${RUST_IMAGE} AS build
WORKDIR /src
# Set by the builder. Each architecture has its own cache.
ARG TARGETARCH
COPY integration/image/toolchain.sh integration/image/
RUN integration/image/toolchain.sh "${TARGETARCH}"
COPY Cargo.toml Cargo.lock build.rs LICENSE limits.yaml ./
COPY src src
COPY lua lua
COPY integration/image/build.sh integration/image/weir.yaml integration/image/
COPY integration/release/licenses.py integration/release/
# For `weir --version`, because the builder has no repository.
ARG REVISION
RUN --mount=type=cache,id=weir-registry,target=/usr/local/cargo/registry \
    --mount=type=cache,id=weir-target-${TARGETARCH},target=/src/target \
    integration/image/build.sh dist /image "${TARGETARCH}"

FROM scratch
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="A rate limiter in front of APIs: a reverse proxy, and the decision service of Envoy, nginx, HAProxy, Traefik and Caddy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image/ /
# `weir` looks for limits.yaml here. Mount a volume or a ConfigMap with your rules on it.
WORKDIR /etc/weir
# A number, because Kubernetes' `runAsNonRoot` needs one without /etc/passwd. Distroless images use the same.
USER 65532:65532
# The addresses are in a file because environment variables would override a mounted configuration.
ENV WEIR_CONFIG=/usr/share/weir/weir.yaml
EXPOSE 8080 9001 9002 9003 9090
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/bin/weir", "health"]
ENTRYPOINT ["/usr/bin/weir"]
CMD ["serve"]
