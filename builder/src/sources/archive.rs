//! An image that was sent as a file.

use std::collections::BTreeMap;
use std::io::Write;

use sandpiper_protocol::ids::UploadId;

use super::pull::take;
use super::{Made, beside_uploads, open};
use crate::buildah::Buildah;
use crate::events::Events;
use crate::failure::Failure;

/// How buildah calls an archive of the Open Container Initiative's format.
const OCI: &str = "oci-archive";

/// Reads an OCI archive, or what `docker save` writes.
pub(super) fn image<W: Write>(upload: &UploadId, buildah: &Buildah, events: &mut Events<W>) -> Result<Made, Failure> {
    events.step(1, 1, "Read the archive", false)?;
    let archive = beside_uploads("archive.tar");
    let contents = open(upload)?.copy(&archive)?;
    let transport = transport(&contents.names)?;
    // Of such an archive buildah makes files, and follows links to where they lead.
    if transport == OCI && !contents.is_plain {
        return Err(Failure::SourceRefused(
            "The OCI archive holds links, devices, or names that lead out of it, and such an archive has files only"
                .into(),
        ));
    }
    let image = take(&format!("{transport}:{}", archive.display()), &[], buildah, events)?;
    Ok(Made { image, digests: BTreeMap::new(), found: Some(BTreeMap::new()) })
}

/// How buildah calls an archive with these files. New ones of `docker save` are both.
fn transport(names: &[String]) -> Result<&'static str, Failure> {
    let has = |name: &str| names.iter().any(|one| one == name);
    match (has("manifest.json"), has("oci-layout")) {
        (true, _) => Ok("docker-archive"),
        (false, true) => Ok(OCI),
        (false, false) => Err(Failure::SourceRefused(
            "The archive is no image: send what `docker save` writes, or an OCI archive (`buildah push IMAGE oci-archive:FILE`)".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_told_by_the_files_that_it_has() {
        let of = |names: &[&str]| transport(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).ok();
        assert_eq!(of(&["manifest.json", "oci-layout"]), Some("docker-archive"));
        assert_eq!(of(&["oci-layout", "index.json"]), Some("oci-archive"));
        assert_eq!(of(&["bin"]), None);
    }
}
