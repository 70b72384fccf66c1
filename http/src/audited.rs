//! What a handler says to the middleware that writes the audit.

/// Put by a handler into its response: the ids that the audit names, when they are not just the one in the path.
#[derive(Debug, Clone)]
pub struct Acted(pub Vec<String>);
