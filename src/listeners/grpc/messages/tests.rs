//! The structures, the files in `protos/` and Envoy's own files say the same.

use std::fmt::Debug;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptors;
use envoy_types::pb::envoy::service::auth::v3 as auth;
use envoy_types::pb::envoy::service::auth::v3::attribute_context as attributes;
use envoy_types::pb::envoy::service::rate_limit_quota::v3 as rlqs;
use envoy_types::pb::envoy::service::ratelimit::v3 as rls;
use envoy_types::pb::envoy::r#type::v3 as types;
use envoy_types::pb::envoy::r#type::v3::HttpStatus as EnvoyHttpStatus;
use envoy_types::pb::google;
use envoy_types::pb::google::protobuf::field_descriptor_proto::{Label, Type};
use envoy_types::pb::google::protobuf::{DescriptorProto, FieldDescriptorProto};
use prost::Message;

use super::{authorization, basics, health, quota, rate_limit};

/// Reads a message and writes it again; with it, as `Debug` shows it.
type Again = fn(Bytes) -> Result<(Vec<u8>, String), prost::DecodeError>;

fn again<M: Message + Default + Debug>(bytes: Bytes) -> Result<(Vec<u8>, String), prost::DecodeError> {
    M::decode(bytes).map(|message| (message.encode_to_vec(), format!("{message:?}")))
}

/// A message, our structure for it, and the one that is generated from Envoy's or Google's files. `grpc.*` is in no such
/// crate; a client that is not ours tests those over the wire.
fn known(name: &str) -> Option<(Again, Option<Again>)> {
    macro_rules! table {
        ($($name:literal: $ours:ty $(, $theirs:ty)?;)*) => {
            match name {
                $($name => Some((again::<$ours> as Again, table!(@theirs $($theirs)?))),)*
                _ => None,
            }
        };
        (@theirs) => { None };
        (@theirs $theirs:ty) => { Some(again::<$theirs> as Again) };
    }
    table! {
        "envoy.service.auth.v3.CheckRequest": authorization::CheckRequest, auth::CheckRequest;
        "envoy.service.auth.v3.CheckResponse": authorization::CheckResponse, auth::CheckResponse;
        "envoy.service.auth.v3.DeniedHttpResponse": authorization::DeniedHttpResponse, auth::DeniedHttpResponse;
        "envoy.service.auth.v3.OkHttpResponse": authorization::OkHttpResponse, auth::OkHttpResponse;
        "envoy.service.auth.v3.AttributeContext": authorization::AttributeContext, auth::AttributeContext;
        "envoy.service.auth.v3.AttributeContext.Peer": authorization::Peer, attributes::Peer;
        "envoy.service.auth.v3.AttributeContext.Request": authorization::AttributeRequest, attributes::Request;
        "envoy.service.auth.v3.AttributeContext.HttpRequest": authorization::HttpRequest, attributes::HttpRequest;
        "envoy.service.auth.v3.AttributeContext.HttpRequest.HeadersEntry": basics::MapEntry;
        "envoy.service.auth.v3.AttributeContext.ContextExtensionsEntry": basics::MapEntry;
        "envoy.service.ratelimit.v3.RateLimitRequest": rate_limit::RateLimitRequest, rls::RateLimitRequest;
        "envoy.service.ratelimit.v3.RateLimitResponse": rate_limit::RateLimitResponse, rls::RateLimitResponse;
        "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit":
            rate_limit::RateLimit, rls::rate_limit_response::RateLimit;
        "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus":
            rate_limit::DescriptorStatus, rls::rate_limit_response::DescriptorStatus;
        "kuadrant.service.ratelimit.v1.ReserveRequest": rate_limit::ReserveRequest;
        "kuadrant.service.ratelimit.v1.ReserveResponse": rate_limit::ReserveResponse;
        "kuadrant.service.ratelimit.v1.CommitRequest": rate_limit::CommitRequest;
        "kuadrant.service.ratelimit.v1.CommitResponse": rate_limit::CommitResponse;
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor":
            rate_limit::RateLimitDescriptor, descriptors::RateLimitDescriptor;
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry":
            basics::MapEntry, descriptors::rate_limit_descriptor::Entry;
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride":
            rate_limit::RateLimitOverride, descriptors::rate_limit_descriptor::RateLimitOverride;
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports":
            quota::RateLimitQuotaUsageReports, rlqs::RateLimitQuotaUsageReports;
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports.BucketQuotaUsage":
            quota::BucketQuotaUsage, rlqs::rate_limit_quota_usage_reports::BucketQuotaUsage;
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse":
            quota::RateLimitQuotaResponse, rlqs::RateLimitQuotaResponse;
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction":
            quota::BucketAction, rlqs::rate_limit_quota_response::BucketAction;
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction":
            quota::QuotaAssignmentAction, rlqs::rate_limit_quota_response::bucket_action::QuotaAssignmentAction;
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.AbandonAction":
            quota::AbandonAction, rlqs::rate_limit_quota_response::bucket_action::AbandonAction;
        "envoy.service.rate_limit_quota.v3.BucketId": quota::BucketId, rlqs::BucketId;
        "envoy.service.rate_limit_quota.v3.BucketId.BucketEntry": basics::MapEntry;
        "envoy.type.v3.RateLimitStrategy": quota::RateLimitStrategy, types::RateLimitStrategy;
        "envoy.type.v3.TokenBucket": quota::TokenBucket, types::TokenBucket;
        "google.protobuf.UInt32Value": basics::UInt32Value, google::protobuf::UInt32Value;
        "envoy.config.core.v3.HeaderValue": basics::HeaderValue, core::HeaderValue;
        "envoy.config.core.v3.HeaderValueOption": authorization::HeaderValueOption, core::HeaderValueOption;
        "envoy.config.core.v3.HeaderMap": authorization::HeaderMap, core::HeaderMap;
        "envoy.config.core.v3.Address": authorization::Address, core::Address;
        "envoy.config.core.v3.SocketAddress": authorization::SocketAddress, core::SocketAddress;
        "envoy.type.v3.HttpStatus": authorization::HttpStatus, EnvoyHttpStatus;
        "google.rpc.Status": basics::Status, google::rpc::Status;
        "google.protobuf.Struct": basics::Struct, google::protobuf::Struct;
        "google.protobuf.Struct.FieldsEntry": basics::StructField;
        "google.protobuf.Value": basics::Value, google::protobuf::Value;
        "google.protobuf.ListValue": basics::ListValue, google::protobuf::ListValue;
        "google.protobuf.Duration": basics::Duration, google::protobuf::Duration;
        "google.protobuf.BoolValue": basics::BoolValue, google::protobuf::BoolValue;
        "google.protobuf.UInt64Value": basics::UInt64Value, google::protobuf::UInt64Value;
        "grpc.health.v1.HealthCheckRequest": health::HealthCheckRequest;
        "grpc.health.v1.HealthCheckResponse": health::HealthCheckResponse;
        "grpc.health.v1.HealthListRequest": health::HealthListRequest;
        "grpc.health.v1.HealthListResponse": health::HealthListResponse;
        "grpc.health.v1.HealthListResponse.StatusesEntry": health::ServiceStatus;
    }
}

/// The files in `protos/` and those of Google's that they import.
pub(in super::super) fn files() -> google::protobuf::FileDescriptorSet {
    let services = [
        "envoy/service/auth/v3/external_auth",
        "envoy/service/rate_limit_quota/v3/rlqs",
        "envoy/service/ratelimit/v3/rls",
        "grpc/health/v1/health",
        "kuadrant/service/ratelimit/v1/rls",
    ];
    let services = services.iter().map(|name| format!("{name}.proto"));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/listeners/grpc/protos");
    let compiled = protox::compile(services, [folder]).unwrap().encode_to_vec();
    google::protobuf::FileDescriptorSet::decode(&compiled[..]).unwrap()
}

/// All messages of these files, by their full names.
fn declared() -> Vec<(String, DescriptorProto)> {
    fn add(prefix: &str, message: &DescriptorProto, to: &mut Vec<(String, DescriptorProto)>) {
        let name = format!("{prefix}.{}", message.name());
        for nested in &message.nested_type {
            add(&name, nested, to);
        }
        to.push((name, message.clone()));
    }
    let mut messages = Vec::new();
    for file in &files().file {
        for message in &file.message_type {
            // The other wrappers stand in the same file of Google's and nothing uses them.
            if file.name() != "google/protobuf/wrappers.proto"
                || matches!(message.name(), "BoolValue" | "UInt32Value" | "UInt64Value")
            {
                add(file.package(), message, &mut messages);
            }
        }
    }
    messages
}

/// A field with a value that only its type keeps as it is, and what it must be written as.
fn sample(field: &FieldDescriptorProto, messages: &[(String, DescriptorProto)]) -> (Vec<u8>, Vec<u8>) {
    let varint = |value: u64| encoded(field, 0, |bytes| prost::encoding::encode_varint(value, bytes));
    let sized = |content: &[u8]| {
        encoded(field, 2, |bytes| {
            prost::encoding::encode_varint(content.len() as u64, bytes);
            bytes.extend_from_slice(content);
        })
    };
    let repeated_number = |value: u64| {
        let mut packed = Vec::new();
        prost::encoding::encode_varint(value, &mut packed);
        sized(&packed)
    };
    let bytes = match (field.r#type(), field.label()) {
        (Type::Int32, Label::Repeated) => repeated_number(u64::MAX),
        (Type::Int32 | Type::Int64 | Type::Uint64, _) => varint(u64::MAX),
        (Type::Uint32, _) => varint(u64::from(u32::MAX)),
        (Type::Bool, _) => return (varint(2), varint(1)),
        // Of `NullValue` there is one, and it is 0.
        (Type::Enum, _) => varint(2),
        (Type::Double, _) => encoded(field, 1, |bytes| bytes.extend_from_slice(&1.5_f64.to_le_bytes())),
        (Type::String | Type::Bytes, _) => sized(b"text"),
        (Type::Message, _) => {
            let name = field.type_name().trim_start_matches('.');
            let (_, message) = messages.iter().find(|(known, _)| known == name).unwrap();
            // One field of it shows that it is read as what it is; in an entry of a map each would be written.
            match message.field.first().filter(|first| first.r#type() != Type::Message) {
                Some(first) if message.options.as_ref().is_none_or(|options| !options.map_entry()) => {
                    let (given, expected) = sample(first, messages);
                    return (sized(&given), sized(&expected));
                }
                _ => sized(&[]),
            }
        }
        (other, _) => panic!("no sample of {other:?}"),
    };
    (bytes.clone(), bytes)
}

/// The key of a field (its number and wire type) and its value.
fn encoded(field: &FieldDescriptorProto, wire: u64, value: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::try_from(field.number()).unwrap() << 3 | wire, &mut bytes);
    value(&mut bytes);
    bytes
}

#[test]
fn every_declared_field_is_read_and_written_as_envoy_does() {
    let messages = declared();
    for (name, message) in &messages {
        let Some((ours, theirs)) = known(name) else { panic!("no structure for {name}") };
        for field in &message.field {
            let place = format!("{name}.{}", field.name());
            let (given, expected) = sample(field, &messages);
            assert_eq!(ours(given.clone().into()).unwrap().0, expected, "{place}");
            let Some(theirs) = theirs else { continue };
            // Their maps are Rust's, which write an entry with nothing in it as no bytes at all: as ours do.
            let (written, shown) = theirs(given.into()).unwrap();
            assert_eq!(written, expected, "{place}: Envoy's");
            let variant: String = field.name().split('_').map(capital).collect();
            let is_named = shown.contains(&format!("{}: ", field.name())) || shown.contains(&format!("{variant}("));
            assert!(is_named, "{place} is no field of {shown}");
        }
    }
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

/// Whatever stands under a number that is not declared is skipped.
#[test]
fn the_structures_have_no_other_fields() {
    for (name, message) in declared() {
        let Some((ours, _)) = known(&name) else { panic!("no structure for {name}") };
        for number in (1..64).filter(|number| message.field.iter().all(|field| field.number() != *number)) {
            let field = FieldDescriptorProto { number: Some(number), ..FieldDescriptorProto::default() };
            for (wire, value) in [(0, &[1][..]), (1, &[1; 8]), (2, &[1, 65]), (5, &[1; 4])] {
                let bytes = encoded(&field, wire, |bytes| bytes.extend_from_slice(value));
                assert!(ours(bytes.into()).unwrap().0.is_empty(), "{name} has a field {number} of wire type {wire}");
            }
        }
    }
}

#[test]
fn the_names_of_enumerations_have_envoys_numbers() {
    use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response;
    use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
    use rate_limit::{Code, Unit};

    for number in 0..8 {
        let theirs = rate_limit_response::rate_limit::Unit::try_from(number).unwrap();
        let ours = Unit::try_from(number).unwrap();
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        if let Ok(theirs) = RateLimitUnit::try_from(number) {
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        }
    }
    for number in 0..3 {
        let theirs = rate_limit_response::Code::try_from(number).unwrap();
        assert_eq!(format!("{:?}", Code::try_from(number).unwrap()), format!("{theirs:?}"));
    }
    for number in 0..4 {
        let theirs = HeaderAppendAction::try_from(number).unwrap();
        assert_eq!(format!("{:?}", authorization::AppendAction::try_from(number).unwrap()), format!("{theirs:?}"));
    }
}
