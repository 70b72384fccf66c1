//! `sandpiper team`

use std::process::ExitCode;

use anyhow::Context;
use sandpiper::client::Client;
use serde_json::Value;

use crate::output::Output;
use crate::text::field;

/// See to the teams of whoever is signed in: who is in them, as what
#[derive(clap::Subcommand)]
#[command(after_help = "\
Needs `sandpiper login`. Nothing is sent by e-mail: `invite` prints a token, to be handed on.

Examples:
  sandpiper team ls
  sandpiper team create newcomers
  sandpiper team invite newcomers --role member
  sandpiper team members newcomers
  sandpiper team set-role newcomers ada@example.com admin
  sandpiper team remove newcomers ada@example.com
  sandpiper team join spi_…")]
pub(crate) enum Command {
    /// List the teams
    Ls,
    /// Found a team
    Create {
        /// 1 to 40 of a-z, 0-9 and -, beginning with a letter
        slug: String,
    },
    /// List who is in a team
    Members {
        /// Slug or id of the team
        slug: String,
    },
    /// Make an invitation to a team, and print its token, this once
    Invite {
        /// Slug or id of the team
        slug: String,
        /// viewer, member, admin or owner
        #[arg(long, default_value = "member")]
        role: String,
        /// The only address that may accept; whoever has the token by default
        #[arg(long)]
        email: Option<String>,
    },
    /// Accept an invitation
    Join {
        /// The invitation's token
        token: String,
    },
    /// Give a member another role
    SetRole {
        /// Slug or id of the team
        slug: String,
        /// The member's address or id
        user: String,
        /// viewer, member, admin or owner
        role: String,
    },
    /// Remove a member, or leave
    Remove {
        /// Slug or id of the team
        slug: String,
        /// The member's address or id
        user: String,
    },
}

pub(crate) async fn run(command: Command, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        Command::Ls => {
            let teams = client.teams().await?;
            output.rows(&["ID", "SLUG", "PLAN", "ROLE"], &teams, |team| {
                ["id", "slug", "plan", "role"].map(|name| field(team, name)).to_vec()
            });
        }
        Command::Create { slug } => output.made(&client.create_team(&slug).await?, "id"),
        Command::Members { slug } => {
            let members = client.members(&slug).await?;
            output.rows(&["USER", "EMAIL", "NAME", "ROLE", "SINCE"], &members, |member| {
                ["user", "email", "name", "role", "since"].map(|name| field(member, name)).to_vec()
            });
        }
        Command::Invite { slug, role, email } => {
            output.made(&client.invite(&slug, &role, email.as_deref()).await?, "token");
        }
        Command::Join { token } => {
            let accepted = client.accept_invitation(&token, Value::Object(serde_json::Map::new())).await?;
            output.made(&accepted["team"], "slug");
        }
        Command::SetRole { slug, user, role } => {
            let user = find(&client, &slug, &user).await?;
            output.made(&client.set_role(&slug, &user, &role).await?, "role");
        }
        Command::Remove { slug, user } => {
            let user = find(&client, &slug, &user).await?;
            client.remove_member(&slug, &user).await?;
            output.line(&user);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The id of the member with this address or id.
async fn find(client: &Client, team: &str, named: &str) -> anyhow::Result<String> {
    let members = client.members(team).await?;
    let named = named.to_lowercase();
    let found = members.iter().find(|member| member["user"] == *named || member["email"] == *named);
    let id = found.and_then(|member| member["user"].as_str());
    Ok(id.with_context(|| format!("{named} is no member of {team}; see `sandpiper team members {team}`"))?.to_owned())
}
