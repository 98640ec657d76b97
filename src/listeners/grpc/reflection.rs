//! Server reflection: tools such as `grpcurl` ask what there is to call. What they get are the compiled files of
//! `protos/`, as they are in the binary.

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use prost::Message;

use super::calls::StreamPermit;
use super::health::Phases;
use super::messages::descriptor::{FileDescriptor, FileDescriptorSet, MessageDescriptor};
use super::messages::reflection::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse, MessageRequest,
    MessageResponse, ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};
use super::protocol::{Code, Deframer, Status, decode, frame};
use crate::http::message::{BodyError, BodyStream, Piece, RequestBody};
use crate::listeners::admin::{Phase, Readiness};

/// What `protoc --include_imports` made of the files in `protos/`.
const DESCRIPTORS: &[u8] = include_bytes!("protos/descriptors.bin");

/// Bytes of a question: names of files and symbols.
const MAX_QUESTION: usize = 64 * 1024;

/// The files, and what is declared where.
#[derive(Debug, Default)]
#[expect(clippy::struct_field_names, reason = "files are what there are of them")]
pub(super) struct Files {
    files: Vec<File>,
    /// The places of files by the full names of what they declare.
    symbols: HashMap<String, usize>,
    /// Full names in the order of the files.
    services: Vec<String>,
}

#[derive(Debug)]
struct File {
    name: String,
    bytes: Bytes,
    imports: Vec<String>,
}

impl Files {
    /// The files in the binary.
    pub(super) fn own() -> Self {
        // A test reads them; without that there would be nothing to hand out.
        Self::read(Bytes::from_static(DESCRIPTORS)).unwrap_or_else(|error| {
            tracing::error!("reflection has nothing to hand out: {error}");
            Self::default()
        })
    }

    fn read(set: Bytes) -> Result<Self, prost::DecodeError> {
        let mut found = Self::default();
        for bytes in FileDescriptorSet::decode(set)?.file {
            let file = FileDescriptor::decode(bytes.clone())?;
            let place = found.files.len();
            let full = |name: &str| format!("{}.{name}", file.package);
            for message in &file.message_type {
                found.add_message(place, &file.package, message);
            }
            for declared in &file.enum_type {
                found.symbols.insert(full(&declared.name), place);
            }
            for service in &file.service {
                let name = full(&service.name);
                for method in &service.method {
                    found.symbols.insert(format!("{name}.{}", method.name), place);
                }
                found.symbols.insert(name.clone(), place);
                found.services.push(name);
            }
            found.files.push(File { name: file.name, bytes, imports: file.dependency });
        }
        Ok(found)
    }

    fn add_message(&mut self, place: usize, scope: &str, message: &MessageDescriptor) {
        let name = format!("{scope}.{}", message.name);
        for nested in &message.nested_type {
            self.add_message(place, &name, nested);
        }
        for declared in &message.enum_type {
            self.symbols.insert(format!("{name}.{}", declared.name), place);
        }
        self.symbols.insert(name, place);
    }

    /// The full names of all services.
    pub(super) fn services(&self) -> &[String] {
        &self.services
    }

    /// The answer to one question.
    pub(super) fn answer(&self, request: ServerReflectionRequest) -> ServerReflectionResponse {
        let response = match &request.message_request {
            Some(MessageRequest::FileByFilename(name)) => {
                self.with_imports(self.files.iter().position(|file| file.name == *name), name)
            }
            Some(MessageRequest::FileContainingSymbol(name)) => {
                self.with_imports(self.symbols.get(name).copied(), name)
            }
            Some(MessageRequest::AllExtensionNumbersOfType(name)) if self.symbols.contains_key(name) => {
                // The files are proto3, which has no extensions.
                let none = ExtensionNumberResponse { base_type_name: name.clone(), extension_number: Vec::new() };
                MessageResponse::AllExtensionNumbers(none)
            }
            Some(MessageRequest::AllExtensionNumbersOfType(name)) => not_found(name),
            Some(MessageRequest::FileContainingExtension(extension)) => {
                not_found(&format!("extension {} of {}", extension.extension_number, extension.containing_type))
            }
            Some(MessageRequest::ListServices(_)) => {
                let service = self.services.iter().map(|name| ServiceResponse { name: name.clone() }).collect();
                MessageResponse::ListServices(ListServiceResponse { service })
            }
            None => error(Code::InvalidArgument, "the request asks nothing that is known".to_owned()),
        };
        ServerReflectionResponse {
            valid_host: request.host.clone(),
            original_request: Some(request),
            message_response: Some(response),
        }
    }

    /// A file and all that it imports, so that the tool needs not ask again.
    fn with_imports(&self, place: Option<usize>, name: &str) -> MessageResponse {
        let Some(place) = place else { return not_found(name) };
        let mut places = vec![place];
        let mut next = 0;
        while let Some(file) = places.get(next).and_then(|place| self.files.get(*place)) {
            for import in &file.imports {
                let found = self.files.iter().position(|file| file.name == *import);
                places.extend(found.filter(|place| !places.contains(place)));
            }
            next += 1;
        }
        let files = places.iter().filter_map(|place| self.files.get(*place));
        let file_descriptor_proto = files.map(|file| file.bytes.clone()).collect();
        MessageResponse::FileDescriptor(FileDescriptorResponse { file_descriptor_proto })
    }
}

fn not_found(what: &str) -> MessageResponse {
    error(Code::NotFound, format!("not found: {what}"))
}

fn error(code: Code, error_message: String) -> MessageResponse {
    MessageResponse::Error(ErrorResponse { error_code: i32::from(code as u8), error_message })
}

/// `ServerReflectionInfo`: one answer for each question, until the client has no more or the process ends.
pub(super) struct Conversation {
    files: Rc<Files>,
    questions: RequestBody,
    deframer: Deframer,
    /// What has come and was not looked at yet.
    data: Bytes,
    phases: Phases,
    has_ended: bool,
    _permit: StreamPermit,
}

impl Conversation {
    pub(super) fn new(files: Rc<Files>, questions: RequestBody, readiness: &Readiness, permit: StreamPermit) -> Self {
        let phases = Phases::of(readiness);
        let deframer = Deframer::new(MAX_QUESTION);
        Self { files, questions, deframer, data: Bytes::new(), phases, has_ended: false, _permit: permit }
    }

    /// The next question, `None` after the last one.
    fn poll_question(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<ServerReflectionRequest>, Status>> {
        loop {
            if let Some(message) = self.deframer.next(&mut self.data)? {
                return Poll::Ready(decode(message).map(Some));
            }
            match self.questions.poll_piece(cx) {
                Poll::Ready(Some(Ok(Piece::Data(data)))) => self.data = data,
                Poll::Ready(Some(Ok(Piece::Trailers(_)))) => {}
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(Status::new(Code::Cancelled, format!("the request broke off: {error}"))));
                }
                Poll::Ready(None) => return Poll::Ready(self.deframer.finish().map(|()| None)),
                Poll::Pending if self.phases.now == Phase::Draining => return Poll::Ready(Err(Status::ending())),
                Poll::Pending => ready!(self.phases.poll_next(cx)),
            }
        }
    }
}

impl BodyStream for Conversation {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let status = match ready!(self.poll_question(cx)) {
            Ok(Some(question)) => {
                return Poll::Ready(Some(Ok(Piece::Data(frame(&self.files.answer(question))))));
            }
            Ok(None) => Status::new(Code::Ok, ""),
            Err(status) => status,
        };
        self.has_ended = true;
        Poll::Ready(Some(Ok(Piece::Trailers(status.headers()))))
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Conversation").finish_non_exhaustive()
    }
}

/// The paths by which the methods of the files are called.
#[cfg(test)]
pub(super) fn methods() -> Vec<String> {
    let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let files = set.file.into_iter().map(|bytes| FileDescriptor::decode(bytes).unwrap());
    let path = |package: &str, service: &str, method: &str| format!("/{package}.{service}/{method}");
    files
        .flat_map(|file| {
            let of = |service: &super::messages::descriptor::ServiceDescriptor| {
                service.method.iter().map(|method| path(&file.package, &service.name, &method.name)).collect::<Vec<_>>()
            };
            file.service.iter().flat_map(of).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(question: MessageRequest) -> MessageResponse {
        let request = ServerReflectionRequest { host: "h".to_owned(), message_request: Some(question) };
        let response = Files::own().answer(request.clone());
        assert_eq!((response.valid_host.as_str(), response.original_request), ("h", Some(request)));
        response.message_response.unwrap()
    }

    /// The names of the files that answer a question, or the code of the error.
    fn files(question: MessageRequest) -> Result<Vec<String>, i32> {
        match ask(question) {
            MessageResponse::FileDescriptor(found) => {
                let name = |bytes: Bytes| FileDescriptor::decode(bytes).unwrap().name;
                Ok(found.file_descriptor_proto.into_iter().map(name).collect())
            }
            MessageResponse::Error(error) => Err(error.error_code),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_comes_with_its_imports() {
        let rls = "envoy/service/ratelimit/v3/rls.proto";
        let mut found = files(MessageRequest::FileByFilename(rls.to_owned())).unwrap();
        assert_eq!(found.remove(0), rls);
        found.sort();
        assert_eq!(
            found,
            [
                "envoy/config/core/v3/base.proto",
                "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
                "envoy/type/v3/ratelimit_unit.proto",
                "google/protobuf/duration.proto",
                "google/protobuf/struct.proto",
                "google/protobuf/wrappers.proto",
            ]
        );
    }

    #[test]
    fn symbols_are_services_methods_messages_and_enumerations() {
        for (symbol, file) in [
            ("envoy.service.auth.v3.Authorization", "envoy/service/auth/v3/external_auth.proto"),
            ("envoy.service.auth.v3.Authorization.Check", "envoy/service/auth/v3/external_auth.proto"),
            ("envoy.service.auth.v3.AttributeContext.Peer", "envoy/service/auth/v3/attribute_context.proto"),
            ("envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit", "envoy/service/ratelimit/v3/rls.proto"),
            ("envoy.type.v3.StatusCode", "envoy/type/v3/http_status.proto"),
            ("google.protobuf.Value", "google/protobuf/struct.proto"),
        ] {
            let found = files(MessageRequest::FileContainingSymbol(symbol.to_owned()));
            assert_eq!(found.map(|files| files[0].clone()), Ok(file.to_owned()), "{symbol}");
        }
        let not_found = Err(i32::from(Code::NotFound as u8));
        assert_eq!(files(MessageRequest::FileContainingSymbol("envoy.Nothing".to_owned())), not_found);
        assert_eq!(files(MessageRequest::FileByFilename("nothing.proto".to_owned())), not_found);
    }

    #[test]
    fn all_services_are_listed() {
        let MessageResponse::ListServices(list) = ask(MessageRequest::ListServices(String::new())) else {
            panic!("no list")
        };
        let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "envoy.service.auth.v3.Authorization",
                "envoy.service.ratelimit.v3.RateLimitService",
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
                "kuadrant.service.ratelimit.v1.RateLimitService",
            ]
        );
    }
}
