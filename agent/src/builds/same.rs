//! Versions of the same image: the later one has the disk of the earlier one, and its warm snapshot, without a copy of either.
//!
//! What was built is named in a version's `key`: by which builder, for a disk of which size, of which image.

use std::io;
use std::path::Path;

use sandpiper_images::layers::{Files, Layer, LayerError, Role};
use sandpiper_images::snapshots::Recipe;
use sandpiper_images::templates::{Pin, Template};
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::template::StartBuild;

use crate::sandbox::Context;

/// What the key of a version begins with that is for an order, and made by a builder.
pub(super) fn prefix(order: &StartBuild, builder: &str) -> String {
    format!("image:{builder}:{}:", order.disk_gib)
}

/// Images of which the team has a version with this prefix.
pub(super) fn known(context: &Context, order: &StartBuild, prefix: &str) -> Vec<String> {
    let keys = versions(context, order).filter_map(|template| template.version.key);
    keys.filter_map(|key| key.strip_prefix(prefix).map(str::to_owned)).collect()
}

/// A version of the team with this key.
pub(super) fn find(context: &Context, order: &StartBuild, key: &str) -> Option<(Template, Pin)> {
    let template = versions(context, order).find(|template| template.version.key.as_deref() == Some(key))?;
    context.templates.pin(&template.version.id)
}

/// Links the disk of a version into the folder of another's draft. Blocks.
pub(super) fn link(template: &Template, draft: &Path) -> Result<Vec<Layer>, LayerError> {
    let mut files = Files::default();
    template.link(draft, || files.new_name(Role::Disk))
}

/// Gives a version the warm snapshot of another of the same image and the same start command; false if there is none. Blocks.
pub(super) fn adopt_warm(context: &Context, order: &StartBuild, recipe: &Recipe, key: &str) -> io::Result<bool> {
    let TemplateVersion { key: image, start, settings, .. } = &recipe.template.version;
    let is_same = |one: &TemplateVersion| one.key == *image && one.start == *start && one.settings == *settings;
    let same = versions(context, order).filter(|template| image.is_some() && is_same(&template.version));
    for template in same {
        let from = context.warm.key(&Recipe { template, ..recipe.clone() })?;
        if context.warm.adopt(&from, key, &recipe.template.version)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The versions of an order's team that sandboxes can be made from.
fn versions(context: &Context, order: &StartBuild) -> impl Iterator<Item = Template> {
    let team = order.team.clone();
    let all = context.templates.all().into_iter();
    all.filter(move |(template, pending)| !pending && template.version.team.as_ref() == Some(&team))
        .map(|(template, _)| template)
}
