//! Versions of templates, as far as they are no sandbox's: listed and deleted.

use std::io;
use std::time::Duration;

use sandpiper_durable::blocking;
use sandpiper_images::templates::DeleteError;
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::ImageSettings;

use super::Sandboxes;
use crate::helpers;

/// How much longer than a boot a deletion waits for starts from the version.
const PIN_SLACK: Duration = Duration::from_secs(15);

impl Sandboxes {
    /// Every version that sandboxes can be started from, with what its team is charged for it, and without what its image says of
    /// programs.
    pub(crate) fn templates(&self) -> Vec<TemplateVersion> {
        let usage = &self.context().usage;
        let mut templates = self.context().templates.list();
        // The agent's own is nobody's to start from.
        templates.retain(|version| !helpers::is_own(version));
        for version in &mut templates {
            version.retained_bytes = usage.of(&version.id);
            // As long as tenants make them, and there are many versions: they are told with the version's build.
            version.settings = ImageSettings::default();
            (version.start, version.command) = (None, None);
            version.images.clear();
        }
        templates
    }

    /// Removes a version and its warm snapshots, and says whether there was one. Sandboxes and checkpoints that were made from it
    /// have links of their own. Dropping the future does not stop that.
    pub(crate) async fn delete_template(&self, id: &VersionId) -> Result<bool, DeleteError> {
        let (this, id) = (self.clone(), id.clone());
        let work = async move {
            let context = this.context_owned();
            if context.templates.find(&id).is_none_or(|template| helpers::is_own(&template.version)) {
                return Ok(false);
            }
            let deleted = context.templates.delete(&id, context.config.boot_timeout() + PIN_SLACK).await?;
            if deleted {
                context.changed.send_replace(());
                let version = id.clone();
                blocking(move || {
                    context.warm.forget(&version);
                    Ok::<_, DeleteError>(())
                })
                .await?;
                tracing::info!(target: "audit", version = id.as_str(), "template version deleted");
            }
            Ok(deleted)
        };
        self.spawn(work).await.map_err(io::Error::other)?
    }
}
