//! What is read of a file that reflection hands out: the names in it, `google.protobuf.FileDescriptorProto` and its parts.

use bytes::Bytes;

/// Compiled files, each after those that it imports. The files themselves stay as they are, to be handed out.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FileDescriptorSet {
    /// Each a [`FileDescriptor`].
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub file: Vec<Bytes>,
}

/// The names in a file.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FileDescriptor {
    /// The file's own, with its folders.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The package of all that it declares.
    #[prost(string, tag = "2")]
    pub package: String,
    /// The files that it imports.
    #[prost(string, repeated, tag = "3")]
    pub dependency: Vec<String>,
    /// Its messages.
    #[prost(message, repeated, tag = "4")]
    pub message_type: Vec<MessageDescriptor>,
    /// Its enumerations.
    #[prost(message, repeated, tag = "5")]
    pub enum_type: Vec<Named>,
    /// Its services.
    #[prost(message, repeated, tag = "6")]
    pub service: Vec<ServiceDescriptor>,
}

/// The names in a message.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MessageDescriptor {
    /// The message's own.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The messages in it.
    #[prost(message, repeated, tag = "3")]
    pub nested_type: Vec<MessageDescriptor>,
    /// The enumerations in it.
    #[prost(message, repeated, tag = "4")]
    pub enum_type: Vec<Named>,
}

/// The names in a service.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ServiceDescriptor {
    /// The service's own.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its methods.
    #[prost(message, repeated, tag = "2")]
    pub method: Vec<Named>,
}

/// Something of which only the name is read.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Named {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}
