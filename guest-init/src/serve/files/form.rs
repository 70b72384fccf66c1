//! The files of a form.

use std::error::Error;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use multer::{Field, Multipart};
use tokio::time::timeout;

use super::{FileError, PIECE_TIMEOUT, late};

/// The form field that files are in.
const FIELD: &str = "file";

/// The fields called `file`, of which there must be one.
pub(in crate::serve) struct Form<'a> {
    fields: Multipart<'a>,
    /// Where the only file goes; without it, files say it in their file name.
    path: Option<String>,
    read: usize,
}

impl<'a> Form<'a> {
    pub(in crate::serve) fn new<B>(body: B, boundary: String, path: Option<String>) -> Self
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>> + 'a> + Send + Unpin + 'a,
    {
        Self { fields: Multipart::new(body.into_data_stream(), boundary), path, read: 0 }
    }

    /// The next file and where it goes; `None` at the end. The one before must have been read, or dropped.
    ///
    /// # Errors
    ///
    /// Fails if the form is broken or has no file, if a file has no name, or if there is another than the one that the
    /// query's path is for: a URL that is signed for one path must not write to others.
    pub(in crate::serve) async fn next(&mut self) -> Result<Option<(Field<'a>, String)>, FileError> {
        let incomplete = |error: multer::Error| FileError::Incomplete(error.to_string());
        loop {
            let next = timeout(PIECE_TIMEOUT, self.fields.next_field()).await;
            let Some(field) = next.map_err(|_| late())?.map_err(incomplete)? else { break };
            if field.name() != Some(FIELD) {
                continue;
            }
            self.read += 1;
            if self.path.is_some() && self.read > 1 {
                let message = "The form has several files and the query one path: name them in the form only";
                return Err(FileError::Request(message.into()));
            }
            let target = self.path.clone().or_else(|| field.file_name().map(str::to_owned));
            let target = target.filter(|target| !target.is_empty());
            let target = target.ok_or_else(|| FileError::Request("A file of the form has no name".into()))?;
            return Ok(Some((field, target)));
        }
        match self.read {
            0 => Err(FileError::Request(format!("The form has no field called {FIELD:?}"))),
            _ => Ok(None),
        }
    }
}
