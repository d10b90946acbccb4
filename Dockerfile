# The image: the relay, the libraries that it is linked with, certificate authorities, a user without rights. No shell,
# no package manager. It runs with a read-only root and without any capability.
#
#   docker build -t outbox-relay .
#
# For a build that gives the same bytes again, name the base by its digest (--build-arg BASE=rust@sha256:…), since the
# libraries come from there, and set SOURCE_DATE_EPOCH.
ARG BASE=rust:1.95-bookworm

FROM ${BASE} AS build
# librdkafka is built by it.
RUN command -v cmake || { apt-get update && apt-get install -y --no-install-recommends cmake; }
WORKDIR /src
COPY . .
# Paths of the build machine stay out of the binary.
ENV RUSTFLAGS="--remap-path-prefix=/src=. --remap-path-prefix=/usr/local/cargo=cargo" CARGO_TERM_COLOR=never
RUN cargo build --release --locked --bin outbox-relay --features otel \
    && strip --strip-debug target/release/outbox-relay \
    && sh packaging/rootfs.sh target/release/outbox-relay /image

FROM scratch
COPY --from=build /image /
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/outbox-relay/
ENV PATH=/usr/local/bin
# A number, so that runAsNonRoot can be checked.
USER 65532:65532
EXPOSE 9645
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/outbox-relay"]
CMD ["run"]
