//! gRPC's server reflection, `grpc.reflection.v1` and, under its first name, `grpc.reflection.v1alpha`. The messages of
//! both are the same on the wire.

use bytes::Bytes;

/// What a tool wants to know.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ServerReflectionRequest {
    /// The host that it thinks it speaks to.
    #[prost(string, tag = "1")]
    pub host: String,
    /// The question.
    #[prost(oneof = "MessageRequest", tags = "3, 4, 5, 6, 7")]
    pub message_request: Option<MessageRequest>,
}

/// A question.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum MessageRequest {
    /// The file of this name.
    #[prost(string, tag = "3")]
    FileByFilename(String),
    /// The file that declares this message, enumeration, service or method.
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    /// The file that declares this extension.
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionRequest),
    /// The numbers of all extensions of this message.
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    /// All services, whatever the text.
    #[prost(string, tag = "7")]
    ListServices(String),
}

/// An extension of a message.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExtensionRequest {
    /// The message.
    #[prost(string, tag = "1")]
    pub containing_type: String,
    /// The number.
    #[prost(int32, tag = "2")]
    pub extension_number: i32,
}

/// The answer to one question.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ServerReflectionResponse {
    /// The host of the question.
    #[prost(string, tag = "1")]
    pub valid_host: String,
    /// The question.
    #[prost(message, optional, tag = "2")]
    pub original_request: Option<ServerReflectionRequest>,
    /// The answer.
    #[prost(oneof = "MessageResponse", tags = "4, 5, 6, 7")]
    pub message_response: Option<MessageResponse>,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum MessageResponse {
    /// Files.
    #[prost(message, tag = "4")]
    FileDescriptor(FileDescriptorResponse),
    /// Numbers of extensions.
    #[prost(message, tag = "5")]
    AllExtensionNumbers(ExtensionNumberResponse),
    /// Services.
    #[prost(message, tag = "6")]
    ListServices(ListServiceResponse),
    /// There is none.
    #[prost(message, tag = "7")]
    Error(ErrorResponse),
}

/// Files.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FileDescriptorResponse {
    /// Each a `google.protobuf.FileDescriptorProto`.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub file_descriptor_proto: Vec<Bytes>,
}

/// Numbers of extensions.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExtensionNumberResponse {
    /// The message that they extend.
    #[prost(string, tag = "1")]
    pub base_type_name: String,
    /// The numbers.
    #[prost(int32, repeated, tag = "2")]
    pub extension_number: Vec<i32>,
}

/// Services.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListServiceResponse {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub service: Vec<ServiceResponse>,
}

/// A service.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ServiceResponse {
    /// Its full name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ErrorResponse {
    /// A gRPC status code.
    #[prost(int32, tag = "1")]
    pub error_code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub error_message: String,
}
