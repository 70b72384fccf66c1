//! Ids by what they name, so that the compiler tells them apart where two stand side by side.
//!
//! Such an id is text: it is read and written as a string, and dereferences to one where any text will do. Whether foreign
//! text has the form of an id is asked once, where it comes in (`is_valid`); what was stored is believed.

/// Declares the type of ids that name one kind of thing, made of `prefix` and what [`id`](crate::id) puts behind it.
#[macro_export]
macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// What each of them begins with.
            pub const PREFIX: &'static str = $prefix;

            /// A new one.
            pub fn generate() -> Self {
                Self($crate::id::generate(Self::PREFIX))
            }

            /// Whether it has the form that [`Self::generate`] gives. To be asked of foreign ones, since ids become folder names.
            pub fn is_valid(&self) -> bool {
                $crate::id::is_valid(Self::PREFIX, &self.0)
            }

            /// Its text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// One that was stored, or sent by somebody who knows.
        impl<T: Into<String>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl ::std::ops::Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        /// For maps by id, in which plain text is looked up. It hashes and compares as its text does.
        impl ::std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

typed_id!(
    /// The id of a team: `team…`.
    TeamId,
    "team"
);
typed_id!(
    /// The id of a sandbox: `sbx…`.
    SandboxId,
    "sbx"
);
typed_id!(
    /// The id of a checkpoint: `ckp…`.
    CheckpointId,
    "ckp"
);
typed_id!(
    /// The id of a volume: `vol…`.
    VolumeId,
    "vol"
);
typed_id!(
    /// The id of a template's version, and of the build that makes it: `ver…`.
    VersionId,
    "ver"
);
typed_id!(
    /// The id of a file that was sent for builds: `upl…`.
    UploadId,
    "upl"
);
typed_id!(
    /// The id of an interval: `int…`.
    IntervalId,
    "int"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_of_one_kind_and_written_as_text() {
        let id = SandboxId::generate();
        assert!(id.is_valid() && !CheckpointId::from(id.as_str()).is_valid());
        assert!(!SandboxId::from("sbx/../../etc").is_valid());
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(text, format!("{:?}", id.as_str()));
        assert_eq!(serde_json::from_str::<SandboxId>(&text).unwrap(), id);
    }
}
